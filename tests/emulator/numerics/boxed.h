/// The kernel that an op gets at dispatch key CUDA: it allocates the results with torch's CUDA allocator, and puts the
/// op's CPU kernel into the current stream, to run on the same memory.
#pragma once

#include <ATen/core/boxing/BoxedKernel.h>

#include "numerics/operator.h"
#include "numerics/shapes.h"

namespace emulator {

class BoxedKernel : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(const c10::OperatorHandle& op) : op_(op) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) { launch(*stack); }

  /// Replaces the arguments on top of the stack by the results.
  void launch(torch::jit::Stack& stack);

 private:
  void launch_in_stream(torch::jit::Stack& stack, const Shapes& shapes);
  void run_synchronously(torch::jit::Stack& stack);

  const Operator op_;
  ShapeCache shapes_;
};

}  // namespace emulator
