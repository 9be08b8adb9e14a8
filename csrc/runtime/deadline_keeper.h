#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gate/gate.h"
#include "model/log_histogram.h"
#include "model/periodic_task.h"
#include "planner/demand_bound.h"
#include "runtime/job_table.h"

namespace torchshare {

/// The periodic jobs of a runtime with policy "edf": accepts a job if all deadlines are met with it, and tells the gate
/// for how long ops of jobs without a period may run on after a release. Not thread-safe.
///
/// Note [Units of unknown cost]
/// A job that does not say how long a unit takes is accepted on trial. Until `kEnough` units have ended, after the
/// first `kWarmUp`, ops of jobs without a period must end before its releases. Then, and after as many again, its cost
/// is the 99.9th percentile so far and a tenth more. The length of its ops, which other periodic jobs wait for, is
/// learned at the same times.
class DeadlineKeeper {
 public:
  static constexpr std::uint64_t kWarmUp = 10;
  static constexpr std::uint64_t kEnough = 50;

  /// `run_ahead`: predicted work that a job without a period may have launched on an asynchronous device.
  DeadlineKeeper(Gate& gate, Timeline& timeline, std::chrono::nanoseconds run_ahead)
      : gate_(gate), timeline_(timeline), run_ahead_(run_ahead) {}

  /// `task.cost` may be 0: unknown. Throws std::invalid_argument that says in which interval too much is demanded, and
  /// what would help.
  void add(JobId job, const std::string& name, const PeriodicTask& task, std::chrono::nanoseconds now);
  /// Called at the end of a unit that took `took`. `longest_op`: of the job, so far.
  void learn(JobId job, std::chrono::nanoseconds took, std::chrono::nanoseconds longest_op,
             std::chrono::nanoseconds now);
  void end(JobId job) noexcept;
  // See Coordinator::deadline_problem.
  const std::string& problem() const { return problem_; }
  bool has_problem() const { return has_problem_.load(); }

 private:
  struct Entry {
    PeriodicTask task;  // cost 0: not known yet
    bool declares_cost;
    bool declares_ops;
    std::uint64_t units = 0;
    LogHistogram<32> took{};
  };

  std::vector<PeriodicTask> known_tasks() const;
  std::string why_not(const DemandBound& bound) const;
  void apply() noexcept;

  Gate& gate_;
  Timeline& timeline_;
  const std::chrono::nanoseconds run_ahead_;
  std::map<JobId, Entry> entries_;
  std::string problem_;
  std::atomic<bool> has_problem_{false};  // read by any thread
};

}  // namespace torchshare
