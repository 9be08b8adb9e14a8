#pragma once

#include <cstdint>

namespace torchshare {

/// Which job: its place in the order of submission, or in the trace.
using JobId = std::uint32_t;

}  // namespace torchshare
