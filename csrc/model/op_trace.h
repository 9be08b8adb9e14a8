#pragma once

#include <cstdint>
#include <vector>

#include "model/op_profile.h"

namespace torchshare {

/// The ops of a job in order of execution. Times in nanoseconds.
struct OpTrace {
  struct Op {
    std::uint64_t context;  ///< of its place, see OpProfile
    double gap;             ///< from the end of the op before it to its begin, including time at the gate
    double idle;            ///< the part of the gap spent waiting for input
    double duration;
    OpKind kind = OpKind::kUnknown;
  };
  std::vector<Op> ops = {};
  std::vector<std::uint64_t> step_ends = {};  ///< per step, the number of ops that had ended at its end
};

}  // namespace torchshare
