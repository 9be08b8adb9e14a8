#pragma once

#include "policy/gate_policy.h"

namespace torchshare {

/// Wraps another policy and bounds each wait: an op that has waited for `max_wait` is admitted.
class MaxWaitPolicy final : public GatePolicy {
 public:
  /// Throws std::invalid_argument unless `max_wait` is positive.
  MaxWaitPolicy(std::unique_ptr<GatePolicy> policy, std::chrono::nanoseconds max_wait);
  bool concerns(const Standing& mine, const Standing& other) const override { return policy_->concerns(mine, other); }
  bool regards(const Standing& mine, const Standing& other) const override { return policy_->regards(mine, other); }
  bool watches_others() const override { return policy_->watches_others(); }
  bool forecasts() const override { return policy_->forecasts(); }
  Verdict decide(const Requester& requester, std::span<const Competitor> competitors) const override;

 private:
  std::unique_ptr<GatePolicy> policy_;
  std::chrono::nanoseconds max_wait_;
};

}  // namespace torchshare
