#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>

#include "gate/gate.h"
#include "runtime/job_table.h"
#include "sharing/slowdown_bound.h"

namespace torchshare {

/// Keeps the bound on the primary's slowdown: from its steps, a SlowdownBound learns the pace of lower jobs, which the
/// gate applies from its second step, the first whose time is known, to its end. A primary without steps, such as a
/// server, limits no other job. Not thread-safe.
class BoundKeeper {
 public:
  /// `keep`: bounds of ended jobs. Throws std::invalid_argument for an invalid bound.
  BoundKeeper(std::optional<double> max_slowdown, std::size_t keep, Gate& gate, Timeline& timeline);

  /// Called when a job did a step in [begin, now).
  void step(const JobTable& jobs, const LiveJob& job, std::chrono::nanoseconds begin, std::chrono::nanoseconds now);
  void end(JobId job) noexcept;
  /// Empty if the job had no bound to keep, or if it is not kept any more.
  std::optional<BoundStats> stats(JobId job) const;

 private:
  struct Bound {
    SlowdownBound bound;
    bool has_ended = false;
  };

  SlowdownBound& bound_of(const LiveJob& job);
  void record(JobId job, std::chrono::nanoseconds now, const SlowdownBound& bound, std::string_view what);

  const std::optional<double> max_slowdown_;
  const std::size_t keep_;
  Gate& gate_;
  Timeline& timeline_;
  std::map<JobId, Bound> bounds_;
};

}  // namespace torchshare
