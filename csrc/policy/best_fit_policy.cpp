#include "policy/best_fit_policy.h"

#include <algorithm>

#include "policy/grace.h"

namespace torchshare {
namespace {

using std::chrono::nanoseconds;

constexpr nanoseconds kForever = nanoseconds::max();

bool fits(const std::optional<nanoseconds>& op, nanoseconds room) {
  return room == kForever || (op && *op <= room);
}

}  // namespace

BestFitPolicy::BestFitPolicy(nanoseconds grace) : grace_(checked_grace(grace)) {}

BestFitPolicy::Room BestFitPolicy::room(const Rival& rival) const {
  const auto [mean, spread] = rival.gap;
  const nanoseconds wrong_at = mean + std::max(2 * spread, grace_);
  if (mean.count() > 0 && rival.quiet < wrong_at) {
    const bool regular = 4 * spread <= mean;
    if (regular || !rival.idle) {
      return {std::max(nanoseconds(0), mean - spread - rival.quiet), wrong_at - rival.quiet};
    }
  }
  if (rival.idle || rival.quiet >= grace_) {
    return {kForever, nanoseconds(0)};
  }
  return {nanoseconds(0), grace_ - rival.quiet};
}

Verdict BestFitPolicy::decide(const Asker& asker, std::span<const Rival> rivals) const {
  nanoseconds left = kForever;
  nanoseconds look_again = kLookAgain;
  for (const Rival& rival : rivals) {
    if (!outranks(rival.priority, asker.priority) || rival.waits) {
      continue;
    }
    if (rival.inside) {
      return {.admit = false, .retry_after = std::max(grace_, kLookAgain)};
    }
    const Room found = room(rival);
    left = std::min(left, found.left);
    look_again = std::max(look_again, found.look_again);
  }
  if (left != kForever) {
    for (const Rival& rival : rivals) {
      left -= rival.inside ? rival.left : nanoseconds(0);  // what is in the gap already takes its part of it
    }
  }
  if (!fits(asker.op, left)) {
    return {.admit = false, .retry_after = std::min(look_again, kLongestRetry)};
  }
  const bool another_first = std::any_of(rivals.begin(), rivals.end(), [&](const Rival& rival) {
    const bool comes_before = outranks(rival.priority, asker.priority) || (left != kForever && rival.op > asker.op);
    return rival.waits && comes_before && fits(rival.op, left);
  });
  return {.admit = !another_first, .retry_after = kLookAgain};
}

}  // namespace torchshare
