#pragma once

#include <string>
#include <string_view>

#include "model/time.h"

namespace torchshare {

/// A promise about requests: `quantile` of them are answered within `limit` seconds.
struct LatencyTarget {
  double quantile = 0;
  Seconds limit = 0;

  bool operator==(const LatencyTarget&) const = default;
};

/// Reads "p99<20ms", "p99.9 < 1.5 s" or "p50<300us". Throws std::invalid_argument that names what was expected.
LatencyTarget parse_latency_target(std::string_view text);
/// As it is read, such as "p99<20ms".
std::string to_string(const LatencyTarget& target);

}  // namespace torchshare
