#include "policy/strict_policy.h"

#include <algorithm>

#include "policy/grace.h"

namespace torchshare {

StrictPolicy::StrictPolicy(std::chrono::nanoseconds grace) : grace_(checked_grace(grace)) {}

Verdict StrictPolicy::decide(const Requester& requester, std::span<const Competitor> competitors) const {
  std::chrono::nanoseconds wait{0};
  for (const Competitor& competitor : competitors) {
    if (!outranks(competitor.priority, requester.priority)) {
      continue;
    }
    if (competitor.inside || (competitor.answering && !competitor.idle && competitor.quiet < kLongestRetry)) {
      wait = std::max({wait, grace_, kLookAgain});
    } else if (!competitor.idle && competitor.quiet < grace_) {
      wait = std::max(wait, grace_ - competitor.quiet);
    }
  }
  return {.admit = wait.count() == 0, .retry_after = wait};
}

}  // namespace torchshare
