#pragma once

#include <ATen/core/Generator.h>

#include <mutex>

namespace torchshare {

/// Swaps the state of a job's generator into the device's default generator, until the destructor. All jobs share one
/// lock for it. Same thread; not for the CPU's generator, whose state is not a pointer.
class GeneratorSwap {
 public:
  explicit GeneratorSwap(const at::Generator& generator);
  ~GeneratorSwap();
  GeneratorSwap(const GeneratorSwap&) = delete;  // holds a lock
  GeneratorSwap& operator=(const GeneratorSwap&) = delete;

  /// True if the calling thread holds one.
  static bool is_swapped();

 private:
  const std::lock_guard<std::mutex> lock_;
  at::Generator default_;
  const at::Generator former_;
};

}  // namespace torchshare
