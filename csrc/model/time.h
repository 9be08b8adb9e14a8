#pragma once

#include <chrono>
#include <limits>

namespace torchshare {

/// A time that is never reached. Clocks, the gate and the policies that run with them use chrono.
inline constexpr std::chrono::nanoseconds kNever = std::chrono::nanoseconds::max();

/// Virtual time: of a simulation, and of plans. A double, because plans multiply and divide times by ratios, rates and
/// shares, and a simulation does so for each job at each event: conversions would cost it more than the arithmetic.
using Seconds = double;
/// The same as kNever, for virtual time in any unit.
inline constexpr double kNeverVirtual = std::numeric_limits<double>::infinity();

}  // namespace torchshare
