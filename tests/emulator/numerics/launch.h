/// One launch of a CPU kernel into a stream: its arguments, what it touches, and where its results go.
#pragma once

#include <ATen/core/stack.h>
#include <ATen/cuda/PhiloxCudaState.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emulator.h"
#include "numerics/operator.h"

namespace emulator {

/// What a kernel that the host waits for hands back.
struct Answer {
  torch::jit::Stack results;
  torch::jit::Stack outs;  // by position among the arguments
  std::exception_ptr error;
};

class Launch {
 public:
  /// Takes the arguments as they are now: device memory by address, host values by copy. An `out=` argument has its
  /// final shape; the kernel gets an empty one, for CPU kernels resize them and mistake their strides.
  Launch(const Operator& op, const c10::IValue* arguments);

  /// Where the kernel's new result at this position goes, on the device.
  void store_result(size_t position, const std::vector<at::Tensor>& into);

  /// Hands results and errors to the host, which waits for them, and stores nothing.
  void answer(std::shared_ptr<Answer> answer);

  /// Puts it into the current stream.
  static void submit(std::unique_ptr<Launch> launch);

 private:
  void run();
  void compute();
  void fail(const std::string& message) const;
  void store(const c10::IValue& values, const std::vector<at::Tensor>& into) const;

  const Operator& op_;
  torch::jit::Stack arguments_;
  std::vector<std::vector<at::Tensor>> outs_;     // device memory of the arguments that are `out`, by position
  std::vector<std::vector<at::Tensor>> results_;  // ... and of new results, by position
  std::optional<at::PhiloxCudaState> random_;
  std::shared_ptr<Answer> answer_;
  std::vector<EmulatorAccess> accesses_;
};

}  // namespace emulator
