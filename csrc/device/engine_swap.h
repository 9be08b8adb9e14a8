#pragma once

#include <ATen/core/Generator.h>

#include <mutex>

namespace torchshare {

/// Puts the state of a job's random engine into the device's default engine, until the destructor. All jobs share one
/// lock for it. Same thread; not for the CPU's engine, whose state is no pointer.
class EngineSwap {
 public:
  explicit EngineSwap(const at::Generator& engine);
  ~EngineSwap();
  EngineSwap(const EngineSwap&) = delete;  // holds a lock
  EngineSwap& operator=(const EngineSwap&) = delete;

  /// The calling thread has one.
  static bool is_swapped();

 private:
  const std::lock_guard<std::mutex> lock_;
  at::Generator default_;
  const at::Generator former_;
};

}  // namespace torchshare
