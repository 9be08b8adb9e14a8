#pragma once

#include <chrono>
#include <string_view>

namespace torchshare {

/// What a marker in a CUDA stream costs the host: to put it there, and to look whether the device has come to it.
struct MarkerCost {
  std::chrono::nanoseconds put{0};
  std::chrono::nanoseconds look{0};
};

/// Means over `count` markers on an empty stream of the current GPU. `kind`: "write", which the gate uses, or "event".
/// Throws std::invalid_argument, also where there is no GPU.
MarkerCost measure_marker_cost(std::string_view kind, int count);

}  // namespace torchshare
