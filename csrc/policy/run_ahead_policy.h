#pragma once

#include "policy/gate_policy.h"

namespace torchshare {

/// Another policy, on a device that runs behind the host: beside a higher job, no more than so much predicted work may
/// be launched and not yet have run. What is launched cannot be called back: this bounds how long a higher job that
/// returns finds the device taken.
class RunAheadPolicy final : public GatePolicy {
 public:
  /// Throws std::invalid_argument when `most` is not above 0.
  RunAheadPolicy(std::unique_ptr<GatePolicy> policy, std::chrono::nanoseconds most);
  bool concerns(Priority mine, Priority other) const override;
  bool forecasts() const override { return true; }
  Verdict decide(const Requester& requester, std::span<const Competitor> competitors) const override;

 private:
  std::unique_ptr<GatePolicy> policy_;
  std::chrono::nanoseconds most_;
};

}  // namespace torchshare
