#pragma once

#include <cstdint>

namespace torchshare {

/// Which job: its index in the order of submission, or in the workload.
using JobId = std::uint32_t;

}  // namespace torchshare
