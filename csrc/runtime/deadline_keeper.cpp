#include "runtime/deadline_keeper.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <stdexcept>

#include "policy/edf_policy.h"
#include "policy/grace.h"

namespace torchshare {

using std::chrono::nanoseconds;

void DeadlineKeeper::add(JobId job, const std::string& name, const PeriodicTask& task, nanoseconds now) {
  std::map<JobId, Entry> made;
  made.try_emplace(job, Entry{task, task.cost > nanoseconds(0), task.longest_op > nanoseconds(0)});
  entries_.merge(made);
  const DemandBound bound = demand_bound(known_tasks());
  if (const std::string why = why_not(bound); !why.empty()) {
    entries_.erase(job);
    throw std::invalid_argument(fmt::format("job '{}': its deadlines cannot be met: {}", name, why));
  }
  apply();
  timeline_.record_decision(job, now, [&] {
    return task.cost > nanoseconds(0)
               ? fmt::format("deadline: accepted, with periodic jobs in {:.0f} % of the time", 100 * bound.utilization)
               : std::string("deadline: accepted on trial, because unit_time is not known");
  });
}

void DeadlineKeeper::learn(JobId job, nanoseconds took, nanoseconds longest_op, nanoseconds now) {
  const auto known = entries_.find(job);
  if (known == entries_.end()) {
    return;
  }
  Entry& entry = known->second;
  if (++entry.units <= kWarmUp) {
    return;
  }
  entry.took.add(took);
  if (entry.took.count() % kEnough != 0) {
    return;
  }
  if (!entry.declares_cost) {
    entry.task.cost =
        from_seconds(PeriodicTask::kCostMargin * to_seconds(*entry.took.quantile(PeriodicTask::kCostQuantile)));
  }
  entry.task.longest_op = entry.declares_ops ? entry.task.longest_op : std::min(longest_op, entry.task.cost);
  const bool had_problem = has_problem();
  apply();
  if (has_problem() && !had_problem) {
    timeline_.record_decision(job, now, [&] { return problem_; });
  }
}

void DeadlineKeeper::end(JobId job) noexcept {
  if (entries_.erase(job) > 0) {
    apply();
  }
}

std::vector<PeriodicTask> DeadlineKeeper::known_tasks() const {
  std::vector<PeriodicTask> tasks;
  for (const auto& [job, entry] : entries_) {
    if (entry.task.cost > nanoseconds(0)) {
      tasks.push_back(entry.task);
      tasks.back().cost += EdfPolicy::kUnitOverhead;
    }
  }
  return tasks;
}

/// Why deadlines may be missed, and what would help; empty if all are met.
std::string DeadlineKeeper::why_not(const DemandBound& bound) const {
  if (bound.is_feasible && bound.blocking_allowed >= run_ahead_) {
    return "";
  }
  if (bound.at == nanoseconds(0)) {
    return fmt::format("periodic jobs would need {:.0f} % of the time; a longer period or a shorter unit would help",
                       100 * bound.utilization);
  }
  if (!bound.is_feasible) {
    return fmt::format(
        "within {:.1f} ms, periodic jobs need {:.1f} ms; a longer period or deadline, or a shorter unit, would help",
        to_milliseconds(bound.at), to_milliseconds(bound.at - bound.room));
  }
  return fmt::format(
      "within {:.1f} ms, {:.1f} ms are free, and an op of another job that has begun may take {:.1f} ms; shorter ops, "
      "as "
      "of smaller batches, would help",
      to_milliseconds(bound.at), to_milliseconds(bound.room),
      to_milliseconds(bound.room - bound.blocking_allowed + run_ahead_));
}

/// Without memory, other jobs' ops must end before the releases.
void DeadlineKeeper::apply() noexcept {
  nanoseconds allowed{0};
  problem_.clear();
  try {
    const std::vector<PeriodicTask> tasks = known_tasks();
    const DemandBound bound = demand_bound(tasks);
    if (const std::string why = why_not(bound); !why.empty()) {
      problem_ = "deadlines of periodic jobs cannot be met: " + why;
    }
    if (tasks.size() == entries_.size() && !tasks.empty()) {
      allowed = std::max(bound.blocking_allowed - run_ahead_ - kLookAgain, nanoseconds(0));
    }
  } catch (const std::bad_alloc&) {
  }
  gate_.set_blocking_allowed(allowed);
  has_problem_.store(!problem_.empty());
}

}  // namespace torchshare
