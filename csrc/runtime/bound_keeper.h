#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string_view>

#include "gate/gate.h"
#include "runtime/job_table.h"
#include "runtime/pace_rules.h"
#include "sharing/slowdown_bound.h"

namespace torchshare {

/// Keeps the bound on the primary's slowdown: from its steps, a SlowdownBound learns the pace of lower jobs, which the
/// gate applies from its second step, the first whose time is known, to its end. A primary that answers requests is
/// bound by the time of its answers, unless it trains: makes steps without waiting for a request between them. The
/// bound's unit changes after 16 timed steps, or after 16 answers without a step. A primary that does neither limits no
/// other job. Not thread-safe.
class BoundKeeper {
 public:
  /// `keep`: bounds of ended jobs. Throws std::invalid_argument for an invalid bound.
  BoundKeeper(std::optional<double> max_slowdown, std::size_t keep, Gate& gate, Timeline& timeline);

  /// Called when a job did its step or answer number `count` in [begin, now); not for a step that waited for a request.
  void step(const JobTable& jobs, LiveJob& job, BoundUnit unit, std::uint64_t count, std::chrono::nanoseconds begin,
            std::chrono::nanoseconds now);
  void end(JobId job, std::chrono::nanoseconds now) noexcept { bounds_.end(job, now); }
  std::optional<BoundStats> stats(JobId job) const { return bounds_.stats(job); }

 private:
  static bool changes_unit(const SlowdownBound& bound, LiveJob& job, std::chrono::nanoseconds now);
  void record(JobId job, std::chrono::nanoseconds now, const SlowdownBound& bound, std::string_view what);

  const std::optional<double> max_slowdown_;
  Timeline& timeline_;
  PaceRules<SlowdownBound> bounds_;
};

}  // namespace torchshare
