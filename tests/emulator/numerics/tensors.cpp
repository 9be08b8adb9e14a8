#include "numerics/tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <cstring>

namespace emulator {

bool holds_tensors(const c10::IValue& value) {
  const c10::ArrayRef<c10::IValue> elements = value.toListRef();
  return std::any_of(elements.begin(), elements.end(), [](const c10::IValue& element) { return element.isTensor(); });
}

void copy_flags(const at::Tensor& from, const at::Tensor& to) {
  if (from.is_conj()) {
    to._set_conj(true);
  }
  if (from.is_neg()) {
    to._set_neg(true);
  }
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) {
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
}

namespace {

at::Tensor copy_of_number(const at::Tensor& tensor) {
  at::Tensor copy = at::detail::empty_cpu({}, tensor.scalar_type());
  std::memcpy(copy.mutable_data_ptr(), tensor.const_data_ptr(), tensor.dtype().itemsize());
  return copy;
}

}  // namespace

at::Tensor kernel_argument(const at::Tensor& tensor, bool written) {
  if (!tensor.defined()) {
    return tensor;
  }
  at::Tensor view;
  if (tensor.is_cuda()) {
    void* memory = written ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr());
    const size_t bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.dtype().itemsize());
    TORCH_CHECK(memory || tensor.numel() == 0, "emulator: a tensor of shape ", tensor.sizes(), " has no memory");
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(memory, c10::Device(c10::kCPU)),
                         /*allocator=*/nullptr, /*resizable=*/false);
    view = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                    tensor.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  } else {
    view = tensor.dim() == 0 ? copy_of_number(tensor) : tensor.clone();
  }
  copy_flags(tensor, view);
  return view;
}

EmulatorAccess access_of(const at::Tensor& tensor, bool written) {
  const size_t bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.dtype().itemsize());
  return {tensor.const_data_ptr(), bytes, written};
}

}  // namespace emulator
