#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "model/periodic_task.h"
#include "torchshare/values.h"

namespace torchshare {

/// A periodic job in virtual time.
struct ReplayedTask {
  PeriodicTask task;
  int ops = 1;  ///< equal ones, of a unit
  Priority priority = Priority::kPrimary;
  std::chrono::nanoseconds first_release{0};
};

/// What became of the units whose deadlines have come.
struct PeriodicReplay {
  std::size_t units = 0;
  std::size_t missed = 0;
  std::chrono::nanoseconds others{0};  ///< device time of the jobs without a period
};

/// Replays periodic jobs, and lower jobs without a period that run one op of `others` after the other, on one core,
/// under a gate policy, until `until`. `blocking_allowed`: see there; for policy "edf".
PeriodicReplay replay_periodic(std::span<const ReplayedTask> tasks, std::span<const std::chrono::nanoseconds> others,
                               std::string_view policy, std::chrono::nanoseconds blocking_allowed,
                               std::chrono::nanoseconds until);

}  // namespace torchshare
