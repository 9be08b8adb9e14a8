#include "policy/max_wait_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace torchshare {

MaxWaitPolicy::MaxWaitPolicy(std::unique_ptr<GatePolicy> policy, std::chrono::nanoseconds max_wait)
    : policy_(std::move(policy)), max_wait_(max_wait) {
  if (max_wait.count() <= 0) {
    throw std::invalid_argument(fmt::format("max_wait must be positive, got {} ns", max_wait.count()));
  }
}

Verdict MaxWaitPolicy::decide(const Requester& requester, std::span<const Competitor> competitors) const {
  const Verdict verdict = policy_->decide(requester, competitors);
  if (verdict.admit || requester.waited >= max_wait_) {
    return {.admit = true, .retry_after = {}};
  }
  return {.admit = false, .retry_after = std::min(verdict.retry_after, max_wait_ - requester.waited)};
}

}  // namespace torchshare
