#pragma once

#include <cstdint>

namespace torchshare {

/// Identifies a job: its index in order of submission, or in the workload.
using JobId = std::uint32_t;

}  // namespace torchshare
