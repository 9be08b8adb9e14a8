#pragma once

#include <fmt/format.h>

#include <chrono>
#include <stdexcept>

namespace torchshare {

// A competitor inside an op gives no sign when it leaves (its exit must cost nothing), so a waiter looks again this
// often.
inline constexpr std::chrono::nanoseconds kLookAgain = std::chrono::microseconds(50);
/// However sure a policy is: things change.
inline constexpr std::chrono::nanoseconds kLongestRetry = std::chrono::milliseconds(100);

/// Throws std::invalid_argument when `grace` is negative or above one second.
inline std::chrono::nanoseconds checked_grace(std::chrono::nanoseconds grace) {
  if (grace < std::chrono::nanoseconds(0) || grace > std::chrono::seconds(1)) {
    throw std::invalid_argument(fmt::format("grace of {} ns: expected 0 to 1,000,000,000", grace.count()));
  }
  return grace;
}

}  // namespace torchshare
