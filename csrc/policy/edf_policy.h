#pragma once

#include "policy/gate_policy.h"

namespace torchshare {

/// Earliest deadline first among periodic jobs; other jobs run ops in between that end before the next release.
///
/// Note [Earliest deadline first at op granularity]
/// A job that is in a unit keeps out all jobs whose unit is due later, and all without a period, also between its ops:
/// an op that began there would delay it once more. So an op of another job delays a unit only if it was running at the
/// release. A periodic job enters beside ops of jobs without a period, which end soon, but waits for the end of an op
/// of another periodic job, so that at most one of those delays an earlier unit.
///
/// The next release is known, so an op of a job without a period enters only if it, and those that run, end before:
/// `until_release` includes the time by which they may be late without a missed deadline (see DemandBound).
///
/// A job that has run no op for `kLongestRetry` in its unit, or since its release, waits for something else, and keeps
/// nobody out. Nor does a unit that is late by as much: it counts as work without a deadline. An op of unknown duration
/// counts as `kUnknownOp`; once such an op, or one of guessed duration, has waited for `kLongestRetry`, it enters as
/// soon as no unit is under way.
class EdfPolicy final : public GatePolicy {
 public:
  static constexpr std::chrono::nanoseconds kUnknownOp = std::chrono::milliseconds(10);
  /// What a unit may cost beyond its own work: as it begins, and as it goes on after an earlier one, it may have to ask
  /// twice.
  static constexpr std::chrono::nanoseconds kUnitOverhead = 2 * kLookAgain;

  bool concerns(const Standing&, const Standing& other) const override { return other.is_periodic; }
  bool regards(const Standing&, const Standing&) const override { return true; }
  bool forecasts() const override { return true; }
  Verdict decide(const Requester& requester, std::span<const Competitor> competitors) const override;
};

}  // namespace torchshare
