#include "planner/demand_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <queue>
#include <stdexcept>
#include <utility>
#include <vector>

namespace torchshare {
namespace {

using std::chrono::nanoseconds;

constexpr double kMostUtilization = 0.999;

void check(const PeriodicTask& task) {
  if (task.period.count() <= 0 || task.deadline.count() <= 0 || task.cost.count() <= 0) {
    throw std::invalid_argument(
        fmt::format("a periodic job must have a positive period, deadline and cost, got {}, {} and {} ns",
                    task.period.count(), task.deadline.count(), task.cost.count()));
  }
}

/// What the longest op of one job may take from the room of another.
nanoseconds longest_op(std::span<const PeriodicTask> tasks) {
  nanoseconds longest{0};
  for (const PeriodicTask& task : tasks) {
    longest = std::max(longest, task.longest_op);
  }
  return tasks.size() > 1 ? longest : nanoseconds(0);
}

}  // namespace

DemandBound demand_bound(std::span<const PeriodicTask> tasks) {
  DemandBound found{.is_feasible = true, .room = kNever};
  double late_release = 0;  // sum of (period - deadline)+ * utilization: what may be demanded beyond utilization * L
  using Deadline = std::pair<nanoseconds, const PeriodicTask*>;
  std::priority_queue<Deadline, std::vector<Deadline>, std::greater<>> deadlines;
  for (const PeriodicTask& task : tasks) {
    check(task);
    const double utilization = to_seconds(task.cost) / to_seconds(task.period);
    found.utilization += utilization;
    late_release += std::max(0.0, to_seconds(task.period - task.deadline)) * utilization;
    deadlines.emplace(task.deadline, &task);
  }
  if (found.utilization > kMostUtilization) {
    found.is_feasible = false;
    found.room = nanoseconds(-1);
    found.blocking_allowed = found.room - longest_op(tasks);
    return found;
  }
  nanoseconds demand{0};
  while (!deadlines.empty()) {
    const auto [at, task] = deadlines.top();
    const double horizon = (to_seconds(found.room) + late_release) / (1 - found.utilization);
    if (to_seconds(at) > horizon) {
      break;
    }
    deadlines.pop();
    deadlines.emplace(at + task->period, task);
    demand += task->cost;
    if (at - demand < found.room) {
      found.room = at - demand;
      found.at = at;
    }
  }
  found.is_feasible = found.room.count() >= 0;
  found.blocking_allowed = found.room - longest_op(tasks);
  return found;
}

}  // namespace torchshare
