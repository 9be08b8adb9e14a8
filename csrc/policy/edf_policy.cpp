#include "policy/edf_policy.h"

#include <algorithm>

#include "policy/grace.h"

namespace torchshare {
namespace {

using std::chrono::nanoseconds;

constexpr Verdict kAdmitted{.admit = true, .retry_after = {}};
constexpr Verdict kRefused{.admit = false, .retry_after = kLookAgain};

/// True for a unit that may still end in time, or not much later.
bool is_urgent(const Unit& unit) {
  return unit.exists() && unit.due > -kLongestRetry;
}

/// True for a job in a unit that waits for something other than the device.
bool is_stuck(const Competitor& competitor) {
  return !competitor.inside && !competitor.waits && competitor.quiet >= kLongestRetry;
}

/// How long the device will be busy with ops that were admitted. Those that are admitted together share it: while one
/// runs, the expected end of the last one counts, even if that has ended earlier.
nanoseconds backlog_of(const Requester& requester, std::span<const Competitor> competitors) {
  bool is_busy = false;
  nanoseconds last = requester.left;
  for (const Competitor& competitor : competitors) {
    is_busy = is_busy || competitor.inside;
    last = std::max(last, competitor.left);
  }
  return is_busy ? last : nanoseconds(0);
}

bool fits(const Requester& requester, nanoseconds room) {
  return requester.must_be_measured() || requester.op.value_or(EdfPolicy::kUnknownOp) <= room;
}

}  // namespace

Verdict EdfPolicy::decide(const Requester& requester, std::span<const Competitor> competitors) const {
  nanoseconds room = kNever;
  for (const Competitor& competitor : competitors) {
    if (is_urgent(competitor.unit)) {
      const bool comes_first = !is_urgent(requester.unit) || competitor.unit < requester.unit;
      if ((comes_first && !is_stuck(competitor)) || competitor.inside) {
        return kRefused;
      }
    } else if (!competitor.unit.exists() && competitor.until_release > -kLongestRetry) {
      room = std::min(room, competitor.until_release);
    }
  }
  if (is_urgent(requester.unit)) {
    return kAdmitted;
  }
  const nanoseconds backlog = backlog_of(requester, competitors);
  if (room != kNever && !fits(requester, room - backlog)) {
    return kRefused;
  }
  return {.admit = true, .retry_after = {}, .backlog = backlog};
}

}  // namespace torchshare
