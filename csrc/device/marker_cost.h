#pragma once

#include <chrono>
#include <string_view>

namespace torchshare {

/// CPU time of a marker on a CUDA stream: recording it, and checking whether the device has reached it.
struct MarkerCost {
  std::chrono::nanoseconds put{0};
  std::chrono::nanoseconds look{0};
};

/// Means over `count` markers on the current stream, which may have work. `kind`: "write", which the gate uses, or
/// "event". Throws std::invalid_argument for invalid arguments or without a GPU.
MarkerCost measure_marker_cost(std::string_view kind, int count);

}  // namespace torchshare
