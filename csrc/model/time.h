#pragma once

#include <chrono>

namespace torchshare {

/// A time that does not come.
inline constexpr std::chrono::nanoseconds kNever = std::chrono::nanoseconds::max();

}  // namespace torchshare
