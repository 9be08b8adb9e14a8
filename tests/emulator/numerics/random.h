/// Random numbers: each op takes (seed, offset) from the CUDA generator as its CUDA kernel would, and draws from a CPU
/// generator that is seeded by the two. A captured op reads them from device memory at each replay.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <ATen/cuda/PhiloxCudaState.h>

namespace emulator {

/// Reserves the op's part of the generator's sequence; None is the device's default generator.
at::PhiloxCudaState reserve_random(const c10::IValue& generator);

/// On the stream's thread.
at::Generator generator_of(const at::PhiloxCudaState& state);

at::Generator generator_of(uint64_t seed, uint64_t offset);

}  // namespace emulator
