#pragma once

#include <chrono>

namespace torchshare {

/// The smallest share that a promise of a latency sets, unless it holds lower jobs altogether.
inline constexpr double kLeastShare = 1e-3;

/// Lower jobs may enter ops during the first `share` of each cycle.
struct Pace {
  std::chrono::nanoseconds origin{0};
  std::chrono::nanoseconds cycle = std::chrono::milliseconds(200);
  double share = 1;                                                  ///< 0 to 1; 1: always
  std::chrono::nanoseconds until = std::chrono::nanoseconds::max();  ///< from then on, they may enter at any time

  bool operator==(const Pace&) const = default;

  /// Time until they may enter; 0: now.
  std::chrono::nanoseconds wait(std::chrono::nanoseconds now) const;
  /// For how long from now they may enter; 0 while they must wait.
  std::chrono::nanoseconds open_for(std::chrono::nanoseconds now) const;
  /// The part of [begin, end) in which they could enter. `origin` must not be later than `begin`.
  std::chrono::nanoseconds open_within(std::chrono::nanoseconds begin, std::chrono::nanoseconds end) const;

 private:
  std::chrono::nanoseconds open_per_cycle() const;
  std::chrono::nanoseconds open_until(std::chrono::nanoseconds when) const;
};

}  // namespace torchshare
