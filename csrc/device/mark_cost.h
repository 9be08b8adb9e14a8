#pragma once

#include <chrono>
#include <string_view>

namespace torchshare {

/// What a mark in a CUDA stream costs the host: to put it there, and to look whether the device has come to it.
struct MarkCost {
  std::chrono::nanoseconds put{0};
  std::chrono::nanoseconds look{0};
};

/// Means over `count` marks on an empty stream of the current GPU. `kind`: "write", which the gate uses, or "event".
/// Throws std::invalid_argument, also where there is no GPU.
MarkCost measure_mark_cost(std::string_view kind, int count);

}  // namespace torchshare
