/// Tensors among an op's boxed arguments, and views of device memory that the CPU's kernels can work on: on the
/// emulated device that memory is the host's.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "emulator.h"

namespace emulator {

inline bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda();
}

/// Calls `visit(tensor)` for the tensor, or for each tensor of the list, that this value is.
template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      for_each_tensor(element, visit);
    }
  }
}

bool holds_tensors(const c10::IValue& value);

/// The same value with each tensor replaced by `map(tensor)`, and the device by the CPU.
template <class Map>
c10::IValue map_tensors(const c10::IValue& value, const Map& map) {
  if (value.isTensor()) {
    return map(value.toTensor());
  }
  if (value.isList() && holds_tensors(value)) {
    c10::List<c10::IValue> mapped = value.toList().copy();
    for (size_t i = 0; i < mapped.size(); ++i) {
      mapped.set(i, map_tensors(mapped.get(i), map));
    }
    return mapped;
  }
  if (value.isDevice()) {
    return c10::Device(c10::kCPU);
  }
  return value;
}

/// A CPU tensor over the memory of a device tensor; it does not keep that memory alive, as a kernel's argument doesn't.
/// A host tensor is copied: a kernel gets its value at the launch.
at::Tensor kernel_argument(const at::Tensor& tensor, bool written);

/// The memory that a tensor spans, gaps between its rows included.
EmulatorAccess access_of(const at::Tensor& tensor, bool written);

/// Carries over the flags that change what a tensor's memory means: lazy conjugation and negation, wrapped numbers.
void copy_flags(const at::Tensor& from, const at::Tensor& to);

}  // namespace emulator
