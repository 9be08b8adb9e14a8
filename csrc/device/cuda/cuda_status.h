#pragma once

#include <string>

namespace torchshare {

/// One line on what this build and this machine have of CUDA: toolkit, driver, devices, or why there is none. Any
/// thread.
std::string cuda_status();

}  // namespace torchshare
