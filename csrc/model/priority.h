#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace torchshare {

/// How much a job is protected: ten levels, `kPrimary` first. Converted to the system's own numbers once, in device/.
enum class Priority : std::uint8_t { kPrimary = 0, kSecondary = 1, kLowest = 9 };

/// True when a job of priority `a` comes before one of priority `b`.
constexpr bool outranks(Priority a, Priority b) {
  return a < b;
}

/// Reads "primary", "secondary" or "level-0" (= primary) to "level-9". Throws std::invalid_argument.
Priority parse_priority(std::string_view text);
std::string to_string(Priority priority);

}  // namespace torchshare
