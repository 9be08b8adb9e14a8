#include "model/latency_target.h"

#include <fmt/format.h>

#include <regex>
#include <stdexcept>

namespace torchshare {

LatencyTarget parse_latency_target(std::string_view text) {
  static const std::regex form(R"(\s*p(\d{1,2}(?:\.\d{1,4})?)\s*<\s*(\d+(?:\.\d+)?)\s*(us|ms|s)\s*)");
  std::cmatch found;
  if (std::regex_match(text.data(), text.data() + text.size(), found, form)) {
    const std::string unit = found[3];
    const LatencyTarget target{std::stod(found[1]) / 100, std::stod(found[2]) * (unit == "us"   ? 1e-6
                                                                                 : unit == "ms" ? 1e-3
                                                                                                : 1)};
    if (target.quantile > 0 && target.limit > 0) {
      return target;
    }
  }
  throw std::invalid_argument(
      fmt::format("slo must be a percentile below 100 and a time in us, ms or s, such as 'p99<20ms', got '{}'", text));
}

std::string to_string(const LatencyTarget& target) {
  return fmt::format("p{:.6g}<{:.6g}ms", 100 * target.quantile, 1e3 * target.limit);
}

}  // namespace torchshare
