#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace torchshare {

/// The number that `text` is, as a whole; empty if it is none, or out of range.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole ? std::optional(value) : std::nullopt;
}

}  // namespace torchshare
