#pragma once

#include <chrono>

namespace torchshare {

/// The cost of waking a waiting thread on this machine.
struct WakeCost {
  std::chrono::nanoseconds notify;   ///< time the notifying thread spends
  std::chrono::nanoseconds latency;  ///< time until the waiting thread runs

  /// A gap is worth filling if notifying takes less than a hundredth of it and the latency less than half.
  std::chrono::nanoseconds shortest_gap() const;
};

/// Measures it with two threads in a few milliseconds: the median of 31 wakes.
WakeCost measure_wake_cost();

}  // namespace torchshare
