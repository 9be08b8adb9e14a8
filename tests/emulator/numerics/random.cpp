#include "numerics/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <mutex>
#include <optional>

namespace emulator {
namespace {

constexpr uint64_t kIncrement = 4;  // what one Philox call yields; offsets are its multiples

}  // namespace

at::PhiloxCudaState reserve_random(const c10::IValue& generator) {
  const auto given = generator.isNone() ? std::nullopt : std::optional<at::Generator>(generator.toGenerator());
  auto* cuda = at::get_generator_or_default<at::CUDAGeneratorImpl>(given, at::cuda::detail::getDefaultCUDAGenerator());
  const std::lock_guard lock(cuda->mutex_);
  return cuda->philox_cuda_state(kIncrement);
}

at::Generator generator_of(const at::PhiloxCudaState& state) {
  if (!state.captured_) {
    return generator_of(state.seed_.val, state.offset_.val);
  }
  return generator_of(static_cast<uint64_t>(*state.seed_.ptr),
                      static_cast<uint64_t>(*state.offset_.ptr) + state.offset_intragraph_);
}

at::Generator generator_of(uint64_t seed, uint64_t offset) {
  constexpr uint64_t kMixer = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio: neighbours in seed and offset stay apart
  return at::detail::createCPUGenerator(seed * kMixer + offset);
}

}  // namespace emulator
