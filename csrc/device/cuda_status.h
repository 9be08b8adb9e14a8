#pragma once

#include <string>

namespace torchshare {

/// One line about CUDA in this build and on this machine: toolkit, driver, devices, or why there is none. Any thread.
std::string cuda_status();

/// How many GPUs this process can use; 0 if the build or the machine has no CUDA. Any thread.
int cuda_device_count();

/// The latest CUDA that the driver supports: 1000 * major + 10 * minor. 0 if the build or the machine has no CUDA. Any
/// thread.
int cuda_driver_version();

}  // namespace torchshare
