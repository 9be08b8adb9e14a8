#include "policy/best_fit_policy.h"

#include <algorithm>

#include "model/time.h"
#include "policy/grace.h"

namespace torchshare {
namespace {

using std::chrono::nanoseconds;

bool fits(const std::optional<nanoseconds>& op, nanoseconds room) {
  return room == kNever || (op && *op <= room);
}

}  // namespace

BestFitPolicy::BestFitPolicy(nanoseconds grace) : grace_(checked_grace(grace)) {}

BestFitPolicy::Room BestFitPolicy::room(const Competitor& competitor) const {
  const auto [mean, spread] = competitor.gap;
  const nanoseconds wrong_at = mean + std::max(2 * spread, grace_);
  if (mean.count() > 0 && competitor.quiet < wrong_at) {
    const bool regular = 4 * spread <= mean;
    if (regular || !competitor.idle) {
      return {std::max(nanoseconds(0), mean - spread - competitor.quiet), wrong_at - competitor.quiet};
    }
  }
  if (competitor.idle || competitor.quiet >= grace_) {
    return {kNever, nanoseconds(0)};
  }
  return {nanoseconds(0), grace_ - competitor.quiet};
}

Verdict BestFitPolicy::decide(const Requester& requester, std::span<const Competitor> competitors) const {
  nanoseconds left = kNever;
  nanoseconds look_again = kLookAgain;
  for (const Competitor& competitor : competitors) {
    if (!outranks(competitor.priority, requester.priority) || competitor.waits) {
      continue;
    }
    if (competitor.inside) {
      return {.admit = false, .retry_after = std::max(grace_, kLookAgain)};
    }
    const Room found = room(competitor);
    left = std::min(left, found.left);
    look_again = std::max(look_again, found.look_again);
  }
  if (left != kNever) {
    for (const Competitor& competitor : competitors) {
      left -= competitor.inside ? competitor.left : nanoseconds(0);  // ops already in the gap use part of it
    }
  }
  if (!fits(requester.op, left) && !(left.count() > 0 && requester.must_be_measured())) {
    return {.admit = false, .retry_after = std::min(look_again, kLongestRetry)};
  }
  const bool another_first = std::any_of(competitors.begin(), competitors.end(), [&](const Competitor& competitor) {
    const bool comes_before =
        outranks(competitor.priority, requester.priority) || (left != kNever && competitor.op > requester.op);
    return competitor.waits && comes_before && fits(competitor.op, left);
  });
  return {.admit = !another_first, .retry_after = kLookAgain};
}

}  // namespace torchshare
