#pragma once

#include <chrono>

namespace torchshare {

/// What it takes to wake a waiting thread on this machine.
struct WakeCost {
  std::chrono::nanoseconds notify;   ///< for the one who wakes
  std::chrono::nanoseconds latency;  ///< until the other runs

  /// A gap is worth filling when the waking is less than a hundredth of it, and over well before its end.
  std::chrono::nanoseconds shortest_gap() const;
};

/// Measures it with two threads, in a few milliseconds: the median of some dozen wakes.
WakeCost measure_wake_cost();

}  // namespace torchshare
