#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/step_time.h"
#include "model/time.h"

namespace torchshare {

/// Measurements of a job alone in some number of sub-batches.
struct MeasuredSize {
  Seconds step;
  double bytes;
};

/// The planner's model of a job.
struct PlannedJob {
  std::string name;
  double remaining_steps = 0;
  double batch = 1;  ///< rows
  StepTimeModel time = {};
  MemoryModel memory = {};
  /// [k]: step time beside the other job / alone, both in 2^k sub-batches. The number of entries limits the splits.
  std::vector<double> ratios = {1};
  std::vector<MeasuredSize> measured = {};  ///< [k]: in 2^k sub-batches; the models cover larger k
  std::optional<Seconds> deadline = {};     ///< by which it should end, counted from now

  /// Step time alone in 2^k sub-batches.
  Seconds step(std::size_t k) const { return k < measured.size() ? measured[k].step : time.step(batch, 1 << k); }
  /// Peak memory in 2^k sub-batches, in bytes.
  double peak(std::size_t k) const { return k < measured.size() ? measured[k].bytes : memory.peak(batch, 1 << k); }
  /// Remaining time alone in 2^k sub-batches.
  Seconds alone(std::size_t k) const { return remaining_steps * step(k); }
};

/// Throws std::invalid_argument for invalid numbers.
void check(const PlannedJob& job);
/// The smallest k such that `job` fits into `bytes` alone in 2^k sub-batches. Throws std::invalid_argument if there is
/// none.
std::size_t split_alone(const PlannedJob& job, double bytes);
/// Step time beside the other in 2^k sub-batches / alone in 2^alone of them.
double slowdown(const PlannedJob& job, std::size_t k, std::size_t alone);

/// From `from` on, counted from now, the two jobs have `bytes` of memory.
struct MemoryFrom {
  Seconds from;
  double bytes;
};

struct PlanOptions {
  std::vector<MemoryFrom> memory = {};      ///< ascending in both fields; empty: unlimited
  std::optional<double> max_slowdown = {};  ///< of the running job: time to its end / time alone - 1
  Seconds suspend_cost = 0;                 ///< time to suspend the running job and resume it
};

enum class PlannedStart { kNow, kAtStep, kAfter, kFirst };

constexpr std::string_view to_string(PlannedStart start) {
  constexpr std::string_view kNames[] = {"now", "at step", "after", "first"};
  return kNames[static_cast<int>(start)];
}

/// What a plan is chosen by: first the least lateness, then the least average.
struct PlanCost {
  Seconds late = kNeverVirtual;     ///< sum of the times from the jobs' deadlines to their ends
  Seconds average = kNeverVirtual;  ///< completion time

  bool is_later_than(const PlanCost& other) const { return late > other.late + kRounding * late; }
  bool is_better_than(const PlanCost& other) const {
    return other.is_later_than(*this) || (!is_later_than(other) && average < other.average);
  }
  /// True if it is not later, and longer by at most the fraction `margin`.
  bool is_near(const PlanCost& other, double margin) const {
    return !is_later_than(other) && average <= other.average * (1 + margin);
  }
  static constexpr double kRounding = 1e-9;
};

/// The start of the new job, and the splits of both while they share. Times count from now.
struct Plan {
  PlannedStart start = PlannedStart::kAfter;  ///< kFirst: now, alone, while the running job is suspended
  Seconds start_in = 0;
  double at_step = 0;  ///< steps of the running job until the start
  int new_sub_batches = 1;
  int running_sub_batches = 1;
  Seconds new_ends = 0;
  Seconds running_ends = 0;
  Seconds late = 0;  ///< see PlanCost
  std::vector<std::string> reasons = {};
  std::array<PlanCost, 4> costs = {};  ///< the best of each start; infinite if it is impossible

  Seconds average() const { return (new_ends + running_ends) / 2; }
  PlanCost cost() const { return {late, average()}; }
  const PlanCost& cost_of(PlannedStart other) const { return costs[static_cast<std::size_t>(other)]; }
};

/// The plan with the least average completion time of the two among those that keep their deadlines; if there is none,
/// among those with the least lateness. For constant ratios both are piecewise linear in the start, so only their
/// breakpoints are tried: now, the end of the running job, the start with which both end together, the first starts
/// that keep the bound and the deadlines, and the times at which memory becomes free. Alone, a job runs in the fewest
/// sub-batches that fit the current memory.
/// Throws std::invalid_argument for invalid numbers, and if a job does not fit alone.
Plan plan_pair(const PlannedJob& new_job, const PlannedJob& running, const PlanOptions& options);

}  // namespace torchshare
