#pragma once

#include <string>

namespace torchshare {

/// One line on what this build and this machine have of CUDA: toolkit, driver, devices, or why there is none. Any
/// thread.
std::string cuda_status();

/// How many GPUs this process can use; 0 also where this build, or this machine, has no CUDA. Any thread.
int cuda_device_count();

}  // namespace torchshare
