#pragma once

#include <chrono>
#include <span>

#include "model/periodic_task.h"

namespace torchshare {

/// Whether periodic jobs meet their deadlines on one device under earliest deadline first.
struct DemandBound {
  bool is_feasible = false;          ///< without other work
  double utilization = 0;            ///< sum of cost / period
  std::chrono::nanoseconds at{0};    ///< the interval with the least room
  std::chrono::nanoseconds room{0};  ///< how long other work may keep the device busy at a release; negative: too much
                                     ///< is demanded
  /// How long ops of jobs without a period may keep the device busy at a release: the room, less the longest op of
  /// another periodic job, which is not interrupted. Negative: deadlines may be missed even without such jobs; kNever:
  /// there are no periodic jobs.
  std::chrono::nanoseconds blocking_allowed{0};
};

/// Compares what is demanded in each interval of length L with L, up to the length from which no interval can have less
/// room: sum_i max(0, floor((L - deadline_i) / period_i) + 1) cost_i + B <= L (Baruah, Rosier and Howell 1990; for
/// blocking B, Jeffay, Stanat and Martel 1991). `room` is the largest B for which it holds. Pure.
/// Throws std::invalid_argument for times that are not positive. At a utilization above 0.999, intervals get too long
/// to look at, and the result is not feasible.
DemandBound demand_bound(std::span<const PeriodicTask> tasks);

}  // namespace torchshare
