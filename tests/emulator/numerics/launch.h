/// One launch of a CPU kernel into a stream: its arguments, what it touches, and where its results go.
#pragma once

#include <ATen/core/stack.h>
#include <ATen/cuda/PhiloxCudaState.h>

#include <memory>
#include <optional>
#include <vector>

#include "emulator.h"
#include "numerics/operator.h"

namespace emulator {

/// What a kernel that the host waits for hands back.
struct Answer {
  torch::jit::Stack results;
  std::exception_ptr error;
};

class Launch {
 public:
  /// Takes the arguments as they are now: device memory by address, host values by copy.
  Launch(const Operator& op, const c10::IValue* arguments);

  /// The kernel's new result at this position is copied into these device tensors.
  void store_result(size_t position, const std::vector<at::Tensor>& into);

  /// The kernel writes this argument on the host: a tensor of any shape, found among `results` of the answer.
  void set_argument(size_t position, c10::IValue value) { arguments_[position] = std::move(value); }

  /// Instead of storing results, hand them to the host, and errors too.
  void answer(std::shared_ptr<Answer> answer) { answer_ = std::move(answer); }

  /// Puts it into the current stream.
  static void submit(std::unique_ptr<Launch> launch);

 private:
  void run();
  void compute(torch::jit::Stack& stack) const;

  const Operator& op_;
  torch::jit::Stack arguments_;
  std::optional<at::PhiloxCudaState> random_;
  std::vector<std::vector<at::Tensor>> stores_;  // by position of the result
  std::shared_ptr<Answer> answer_;
  std::vector<EmulatorAccess> accesses_;
};

}  // namespace emulator
