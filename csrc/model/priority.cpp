#include "torchshare/values.h"

#include <fmt/format.h>

#include <stdexcept>

namespace torchshare {

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

}  // namespace torchshare
