#pragma once

#include <fmt/format.h>

#include <chrono>
#include <stdexcept>

namespace torchshare {

// A competitor inside an op notifies nobody when it leaves (its exit must cost nothing), so waiting jobs poll this
// often.
inline constexpr std::chrono::nanoseconds kLookAgain = std::chrono::microseconds(50);
/// An upper limit on every retry, whatever the forecast.
inline constexpr std::chrono::nanoseconds kLongestRetry = std::chrono::milliseconds(100);

/// Throws std::invalid_argument if `grace` is negative or above one second.
inline std::chrono::nanoseconds checked_grace(std::chrono::nanoseconds grace) {
  if (grace < std::chrono::nanoseconds(0) || grace > std::chrono::seconds(1)) {
    throw std::invalid_argument(fmt::format("grace must be from 0 to 1 s, got {} ns", grace.count()));
  }
  return grace;
}

}  // namespace torchshare
