#include "policy/strict_policy.h"

#include <algorithm>

#include "policy/grace.h"

namespace torchshare {

StrictPolicy::StrictPolicy(std::chrono::nanoseconds grace) : grace_(checked_grace(grace)) {}

Verdict StrictPolicy::decide(const Asker& asker, std::span<const Rival> rivals) const {
  std::chrono::nanoseconds wait{0};
  for (const Rival& rival : rivals) {
    if (!outranks(rival.priority, asker.priority)) {
      continue;
    }
    if (rival.inside) {
      wait = std::max({wait, grace_, kLookAgain});
    } else if (!rival.idle && rival.quiet < grace_) {
      wait = std::max(wait, grace_ - rival.quiet);
    }
  }
  return {.admit = wait.count() == 0, .retry_after = wait};
}

}  // namespace torchshare
