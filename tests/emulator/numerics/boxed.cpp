#include "numerics/boxed.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/cuda/EmptyTensor.h>
#include <ATen/ops/_resize_output_native.h>
#include <ATen/ops/copy_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include "numerics/launch.h"
#include "numerics/tensors.h"

namespace emulator {
namespace {

at::Tensor allocate(const Shape& shape) {
  if (!shape.defined) {
    return at::Tensor();
  }
  const c10::Device device(c10::kCUDA, c10::cuda::current_device());
  return at::Tensor(at::detail::empty_strided_cuda(shape.sizes, shape.strides, shape.type, device));
}

void resize(const at::Tensor& out, const Shape& shape) {
  if (out.sizes() == c10::IntArrayRef(shape.sizes)) {
    return;
  }
  at::native::_resize_output_(out, shape.sizes, out.device());
  const size_t bytes = at::detail::computeStorageNbytes(shape.sizes, shape.strides, out.dtype().itemsize());
  if (bytes == out.nbytes()) {  // dense, in another order
    out.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides);
  }
}

at::Tensor to_device(const at::Tensor& tensor) {
  at::Tensor made = allocate(shapes_of(tensor)[0]);
  return made.defined() ? at::native::copy_(made, tensor) : made;
}

void synchronize() {
  C10_CUDA_CHECK(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream().stream()));
}

bool is_capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

/// torch turns these into a masked_fill, which needs no count.
bool is_masked_fill(const c10::IValue* arguments, size_t count) {
  return count > 3 && arguments[2].isTensor() && arguments[2].toTensor().numel() == 1 &&
         arguments[2].toTensor().device().is_cpu() && !(arguments[3].isBool() && arguments[3].toBool());
}

/// x[mask]: CUDA's kernel counts the mask's true elements on the host.
bool has_mask(const c10::IValue* arguments, size_t count) {
  bool found = false;
  for (size_t i = 0; i < count; ++i) {
    if (!arguments[i].isOptionalTensorList()) {
      continue;
    }
    for_each_tensor(arguments[i], [&](const at::Tensor& index) {
      found |= index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
    });
  }
  return found && !is_masked_fill(arguments, count);
}

/// The device of all tensors, which the op's kernel makes current; empty if it has none.
std::optional<c10::Device> device_of(const Operator& op, const c10::IValue* arguments) {
  std::optional<c10::Device> found;
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    if (op.arguments[i].may_be_on_host) {
      continue;
    }
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || (!tensor.is_cuda() && tensor.dim() == 0)) {
        return;
      }
      const c10::Device first = found.value_or(tensor.is_cuda() ? tensor.device() : c10::Device(c10::kCUDA, 0));
      TORCH_CHECK(tensor.device() == first,
                  "Expected all tensors to be on the same device, but found at least two devices, ", first, " and ",
                  tensor.device(), "! (when checking argument ", i, " of ", op.name, ")");
      found = first;
    });
  }
  return found;
}

/// As TensorIterator does; the CPU's kernel cannot, for its arguments seem to have memory of their own.
void check_overlap(const Operator& op, const c10::IValue* arguments) {
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    if (!op.arguments[i].written || !arguments[i].isTensor()) {
      continue;
    }
    for (size_t j = 0; j < op.arguments.size(); ++j) {
      if (j != i && arguments[j].isTensor() && arguments[j].toTensor().defined()) {
        at::assert_no_partial_overlap(arguments[i].toTensor(), arguments[j].toTensor());
      }
    }
  }
}

/// The results, in the order of the schema: an argument that was written, or new tensors.
torch::jit::Stack results_of(const Operator& op, const c10::IValue* arguments,
                             const std::vector<c10::IValue>& new_results) {
  torch::jit::Stack results;
  for (size_t i = 0; i < op.results.size(); ++i) {
    const int argument = op.results[i].argument;
    results.push_back(argument < 0 ? new_results[i] : arguments[argument]);
  }
  return results;
}

void replace(torch::jit::Stack& stack, size_t arguments, torch::jit::Stack results) {
  stack.erase(stack.end() - static_cast<std::ptrdiff_t>(arguments), stack.end());
  std::move(results.begin(), results.end(), std::back_inserter(stack));
}

}  // namespace

void BoxedKernel::launch(torch::jit::Stack& stack) {
  const size_t count = op_.arguments.size();
  const c10::IValue* arguments = stack.data() + stack.size() - count;
  const c10::OptionalDeviceGuard guard(device_of(op_, arguments));
  if (op_.elementwise) {
    check_overlap(op_, arguments);
  }
  const bool masked = op_.takes_indices && has_mask(arguments, count);
  if (op_.synchronous || (masked && op_.returns_new)) {
    return run_synchronously(stack);
  }
  if (masked) {
    synchronize();
  }
  const Shapes& shapes = shapes_.find(op_, arguments);
  if (!shapes.refused) {
    return launch_in_stream(stack, shapes);
  }
  if (is_capturing()) {
    std::rethrow_exception(shapes.refused);
  }
  run_synchronously(stack);  // either the arguments are wrong, or only the dummies: the real values tell
}

void BoxedKernel::launch_in_stream(torch::jit::Stack& stack, const Shapes& shapes) {
  const size_t count = op_.arguments.size();
  const c10::IValue* arguments = stack.data() + stack.size() - count;
  for (size_t i = 0; i < count; ++i) {
    auto shape = shapes.outs[i].begin();
    if (op_.arguments[i].out) {
      for_each_tensor(arguments[i], [&](const at::Tensor& out) { resize(out, *shape++); });
    }
  }
  auto launch = std::make_unique<Launch>(op_, arguments);
  std::vector<c10::IValue> new_results(op_.results.size());
  for (size_t i = 0; i < op_.results.size(); ++i) {
    if (op_.results[i].argument >= 0) {
      continue;
    }
    std::vector<at::Tensor> tensors;
    for (const Shape& shape : shapes.results[i]) {
      tensors.push_back(allocate(shape));
    }
    launch->store_result(i, tensors);
    new_results[i] = op_.results[i].list ? c10::IValue(std::move(tensors)) : c10::IValue(std::move(tensors[0]));
  }
  Launch::submit(std::move(launch));
  replace(stack, count, results_of(op_, arguments, new_results));
}

void BoxedKernel::run_synchronously(torch::jit::Stack& stack) {
  const size_t count = op_.arguments.size();
  const c10::IValue* arguments = stack.data() + stack.size() - count;
  const auto answer = std::make_shared<Answer>();
  auto launch = std::make_unique<Launch>(op_, arguments);
  launch->answer(answer);
  Launch::submit(std::move(launch));
  synchronize();
  if (answer->error) {
    std::rethrow_exception(answer->error);
  }
  for (size_t i = 0; i < count; ++i) {
    if (op_.arguments[i].out) {
      at::Tensor out = arguments[i].toTensor();
      const at::Tensor& value = answer->outs[i].toTensor();
      resize(out, shapes_of(value)[0]);
      at::native::copy_(out, value);
    }
  }
  std::vector<c10::IValue> new_results(op_.results.size());
  for (size_t i = 0; i < op_.results.size(); ++i) {
    if (op_.results[i].argument < 0) {
      new_results[i] = map_tensors(answer->results[i], to_device);
    }
  }
  replace(stack, count, results_of(op_, arguments, new_results));
}

}  // namespace emulator
