#pragma once

#include "policy/best_fit_policy.h"

namespace torchshare {

/// BestFitPolicy that also admits an op of known duration beside a higher job's op that uses another part of the
/// device: one that moves memory beside one that computes, or vice versa (Orion's admission,
/// doi 10.1145/3627703.3629578).
class ResourceAwarePolicy final : public GatePolicy {
 public:
  /// Throws std::invalid_argument like BestFitPolicy.
  explicit ResourceAwarePolicy(std::chrono::nanoseconds grace) : gaps_(grace) {}
  bool concerns(const Standing& mine, const Standing& other) const override { return gaps_.concerns(mine, other); }
  bool forecasts() const override { return true; }
  Verdict decide(const Requester& requester, std::span<const Competitor> competitors) const override;

 private:
  const BestFitPolicy gaps_;
};

}  // namespace torchshare
