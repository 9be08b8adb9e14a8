#pragma once

#include "policy/gate_policy.h"

namespace torchshare {

/// Wraps another policy, for asynchronous devices: bounds the predicted work that a lower job may have launched and not
/// finished beside a higher job. Launched work cannot be called back, so this bounds how long a returning higher job
/// finds the device busy.
class RunAheadPolicy final : public GatePolicy {
 public:
  /// Throws std::invalid_argument unless `limit` is positive.
  RunAheadPolicy(std::unique_ptr<GatePolicy> policy, std::chrono::nanoseconds limit);
  bool concerns(const Standing& mine, const Standing& other) const override;
  bool regards(const Standing& mine, const Standing& other) const override { return policy_->regards(mine, other); }
  bool watches_others() const override { return policy_->watches_others(); }
  bool forecasts() const override { return true; }
  Verdict decide(const Requester& requester, std::span<const Competitor> competitors) const override;

 private:
  std::unique_ptr<GatePolicy> policy_;
  std::chrono::nanoseconds limit_;
};

}  // namespace torchshare
