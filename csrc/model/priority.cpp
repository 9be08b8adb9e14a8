#include "torchshare/values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <stdexcept>

namespace torchshare {
namespace {

constexpr std::array<std::string_view, 4> kDevicePriorities = {"auto", "idle", "nice", "none"};

}  // namespace

Priority parse_priority(std::string_view text) {
  if (text == "primary") {
    return Priority::kPrimary;
  }
  if (text == "secondary") {
    return Priority::kSecondary;
  }
  constexpr std::string_view kPrefix = "level-";
  if (text.size() == kPrefix.size() + 1 && text.starts_with(kPrefix) && text.back() >= '0' && text.back() <= '9') {
    return static_cast<Priority>(text.back() - '0');
  }
  throw std::invalid_argument(
      fmt::format("priority must be 'primary', 'secondary' or 'level-0' to 'level-9', got '{}'", text));
}

std::string to_string(Priority priority) {
  switch (priority) {
    case Priority::kPrimary:
      return "primary";
    case Priority::kSecondary:
      return "secondary";
    default:
      return fmt::format("level-{}", static_cast<int>(priority));
  }
}

DevicePriority parse_device_priority(std::string_view text) {
  const auto found = std::find(kDevicePriorities.begin(), kDevicePriorities.end(), text);
  if (found == kDevicePriorities.end()) {
    throw std::invalid_argument(
        fmt::format("device_priority must be one of {}, got '{}'", fmt::join(kDevicePriorities, ", "), text));
  }
  return static_cast<DevicePriority>(found - kDevicePriorities.begin());
}

std::string_view to_string(DevicePriority priority) {
  return kDevicePriorities[static_cast<std::size_t>(priority)];
}

}  // namespace torchshare
