#include "planner/periodic_replay.h"

#include "planner/op_replay.h"

namespace torchshare {
namespace {

using std::chrono::nanoseconds;

constexpr nanoseconds kRounding = std::chrono::microseconds(1);

/// A job of `steps` times `ops` equal ops without gaps. `id` identifies its ops.
ReplayJob job_of(std::size_t id, nanoseconds cost, int ops, std::uint32_t steps) {
  ReplayJob made;
  const double duration = static_cast<double>(cost.count()) / ops;
  for (std::uint32_t step = 0; step < steps; ++step) {
    for (int op = 0; op < ops; ++op) {
      const std::uint64_t context = (id << 32) + static_cast<std::uint64_t>(op);
      made.trace.ops.push_back({.context = context, .gap = 0, .idle = 0, .duration = duration});
    }
  }
  made.trace.step_ends.push_back(made.trace.ops.size());
  return made;
}

}  // namespace

PeriodicReplay replay_periodic(std::span<const ReplayedTask> tasks, std::span<const nanoseconds> others,
                               std::string_view policy, nanoseconds blocking_allowed, nanoseconds until) {
  std::vector<ReplayJob> jobs;
  for (const ReplayedTask& each : tasks) {
    jobs.push_back(job_of(jobs.size(), each.task.cost, each.ops, 1));
    jobs.back().priority = each.priority;
    jobs.back().task = each.task;
    jobs.back().first_release = each.first_release;
  }
  for (const nanoseconds op : others) {
    jobs.push_back(job_of(jobs.size(), op, 1, OpTime::kEnough));
    jobs.back().priority = Priority::kLowest;
  }
  const ReplayOptions options{
      .cores = 1, .device_priority = false, .blocking_allowed = blocking_allowed, .until = until};
  const auto done = OpReplay(jobs, make_gate_policy(policy, {}), options).run();
  PeriodicReplay found;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const PeriodicTask& task = tasks[i].task;
    std::size_t unit = 0;
    for (auto release = tasks[i].first_release; release + task.deadline <= until; release += task.period, ++unit) {
      const bool met = unit < done[i].units.size() && done[i].units[unit].end <= release + task.deadline + kRounding;
      ++found.units;
      found.missed += met ? 0 : 1;
    }
  }
  for (std::size_t i = 0; i < others.size(); ++i) {
    found.others += static_cast<std::int64_t>(done[tasks.size() + i].ops) * others[i];
  }
  return found;
}

}  // namespace torchshare
