#include "torchshare/values.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <stdexcept>

namespace torchshare {
namespace {

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole ? std::optional(value) : std::nullopt;
}

constexpr double kLongestDelaySeconds = 1e9;  // 31 years; keeps nanoseconds inside 64 bits

}  // namespace

StartCondition parse_start(std::string_view text) {
  constexpr std::string_view kAfter = "after:";
  constexpr std::string_view kStep = "step:";
  if (text == "now") {
    return StartNow{};
  }
  if (text == "auto") {
    return StartAuto{};
  }
  if (text.starts_with(kAfter) && text.size() > kAfter.size()) {
    return StartAfterJob{std::string(text.substr(kAfter.size()))};
  }
  if (text.starts_with(kStep)) {
    if (const auto step = parse_number<std::uint64_t>(text.substr(kStep.size()))) {
      return StartAtStep{*step};
    }
  } else if (const auto seconds = parse_number<double>(text);
             seconds && *seconds >= 0 && *seconds <= kLongestDelaySeconds) {
    return StartAfterDelay{std::chrono::nanoseconds(static_cast<std::int64_t>(*seconds * 1e9))};
  }
  throw std::invalid_argument(
      fmt::format("start must be 'now', 'auto', 'after:<job>', 'step:<k>' (steps of the primary, k >= 0) or 0 to 1e9 "
                  "seconds, got '{}'",
                  text));
}

std::string to_string(const StartCondition& condition) {
  struct Visitor {
    std::string operator()(const StartNow&) const { return "now"; }
    std::string operator()(const StartAuto&) const { return "auto"; }
    std::string operator()(const StartAfterJob& c) const { return fmt::format("after:{}", c.job); }
    std::string operator()(const StartAtStep& c) const { return fmt::format("step:{}", c.step); }
    std::string operator()(const StartAfterDelay& c) const {
      return fmt::format("{} s", std::chrono::duration<double>(c.delay).count());
    }
  };
  return std::visit(Visitor{}, condition);
}

}  // namespace torchshare
