/// Kernels written by hand: ops whose CPU kernel does not exist, takes other arguments, or is not what CUDA's does.
#pragma once

#include <torch/library.h>

namespace emulator {

void install_overrides(torch::Library& library);

}  // namespace emulator
