#pragma once

#include <chrono>

#include "model/time.h"

namespace torchshare {

/// A job that is released once per period, and does one unit of work each time.
struct PeriodicTask {
  std::chrono::nanoseconds period{0};      ///< time between two releases
  std::chrono::nanoseconds deadline{0};    ///< by when a unit must have ended, from its release
  std::chrono::nanoseconds cost{0};        ///< time that a unit takes alone, at most
  std::chrono::nanoseconds longest_op{0};  ///< the longest op of a unit; 0: unknown

  // Where `cost` is measured, it is this quantile of what units took, times this margin.
  static constexpr double kCostQuantile = 0.999;
  static constexpr double kCostMargin = 1.1;

  bool operator==(const PeriodicTask&) const = default;
};

/// Where a periodic job is. Times of the gate's clock.
struct UnitState {
  std::chrono::nanoseconds deadline = kNever;  ///< of the unit that it is in; kNever: it is in none
  std::chrono::nanoseconds release = kNever;   ///< of its next unit; kNever: unknown, or it is in one
};

}  // namespace torchshare
