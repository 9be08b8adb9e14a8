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
/// gate applies from its second step, the first whose time is known, to its end. For a primary without steps, such as a
/// server, its answers to requests are what must not take longer; one without either limits no other job. Not
/// thread-safe.
class BoundKeeper {
 public:
  /// `keep`: bounds of ended jobs. Throws std::invalid_argument for an invalid bound.
  BoundKeeper(std::optional<double> max_slowdown, std::size_t keep, Gate& gate, Timeline& timeline);

  /// Called when a job did its step or answer number `count` in [begin, now).
  void step(const JobTable& jobs, const LiveJob& job, std::uint64_t count, std::chrono::nanoseconds begin,
            std::chrono::nanoseconds now);
  void end(JobId job) noexcept { bounds_.end(job); }
  std::optional<BoundStats> stats(JobId job) const { return bounds_.stats(job); }

 private:
  void record(JobId job, std::chrono::nanoseconds now, const SlowdownBound& bound, std::string_view what);

  const std::optional<double> max_slowdown_;
  Timeline& timeline_;
  PaceRules<SlowdownBound> bounds_;
};

}  // namespace torchshare
