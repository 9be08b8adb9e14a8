#include "policy/run_ahead_policy.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace torchshare {

RunAheadPolicy::RunAheadPolicy(std::unique_ptr<GatePolicy> policy, std::chrono::nanoseconds limit)
    : policy_(std::move(policy)), limit_(limit) {
  if (limit.count() <= 0) {
    throw std::invalid_argument(fmt::format("run_ahead must be positive, got {} ns", limit.count()));
  }
}

bool RunAheadPolicy::concerns(const Standing& mine, const Standing& other) const {
  return outranks(other.priority, mine.priority) || policy_->concerns(mine, other);
}

Verdict RunAheadPolicy::decide(const Requester& requester, std::span<const Competitor> competitors) const {
  if (requester.ahead > limit_) {
    return {.admit = false, .retry_after = requester.ahead - limit_};
  }
  return policy_->decide(requester, competitors);
}

}  // namespace torchshare
