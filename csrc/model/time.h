#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace torchshare {

/// A time that is never reached. Clocks, the gate and the policies that run with them use chrono.
inline constexpr std::chrono::nanoseconds kNever = std::chrono::nanoseconds::max();

/// Virtual time of simulations and plans, and means of measured times. A double, because these are multiplied and
/// divided by ratios, rates and shares, in a simulation for each job at each event: conversions would cost more than
/// the arithmetic.
using Seconds = double;
/// The same as kNever, for virtual time in any unit.
inline constexpr double kNeverVirtual = std::numeric_limits<double>::infinity();

inline Seconds to_seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<Seconds>(time).count();
}

/// For messages.
inline double to_milliseconds(std::chrono::nanoseconds time) {
  return 1e3 * to_seconds(time);
}

/// kNever for 1e9 s and more, which includes kNeverVirtual.
inline std::chrono::nanoseconds from_seconds(Seconds time) {
  return time < 1e9 ? std::chrono::nanoseconds(static_cast<std::int64_t>(time * 1e9)) : kNever;
}

}  // namespace torchshare
