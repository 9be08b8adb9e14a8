#pragma once

#include "policy/best_fit_policy.h"

namespace torchshare {

/// BestFitPolicy, but an op whose length is known may also run beside a higher job's op that keeps another part of the
/// device busy: one that moves memory beside one that computes, or the other way round (Orion's admission,
/// doi 10.1145/3627703.3629578).
class ResourceAwarePolicy final : public GatePolicy {
 public:
  /// Throws std::invalid_argument like BestFitPolicy.
  explicit ResourceAwarePolicy(std::chrono::nanoseconds grace) : gaps_(grace) {}
  bool concerns(Priority mine, Priority other) const override { return gaps_.concerns(mine, other); }
  bool forecasts() const override { return true; }
  Verdict decide(const Requester& requester, std::span<const Competitor> competitors) const override;

 private:
  const BestFitPolicy gaps_;
};

}  // namespace torchshare
