#pragma once

#include <limits>

namespace torchshare {

/// Virtual time of the simulator, from the beginning of the trace.
using Seconds = double;
inline constexpr Seconds kNoTime = std::numeric_limits<Seconds>::infinity();

/// One job of a trace. All its GPUs run, or none does (a gang).
struct TraceJob {
  Seconds arrival = 0;
  Seconds duration = 0;  ///< alone, with its batches whole
  int gpus = 1;
  double memory_gib = 0;  ///< per GPU, with its batches whole; 0 where nobody knows
  int model = 0;          ///< its row of the interference table
};

}  // namespace torchshare
