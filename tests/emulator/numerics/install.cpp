/// Gives each op of torch a kernel at dispatch key CUDA, when this library is loaded: by the emulated device, at the
/// first question for the number of devices. It registers kernels and touches no device.

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <unordered_set>

#include "numerics/boxed.h"
#include "numerics/no_warnings.h"
#include "numerics/overrides.h"

namespace emulator {
namespace {

/// Kernels of torch's that deal in memory or metadata only, or call other ops.
bool is_torchs_own(const std::string& name) {
  static const std::unordered_set<std::string> names = {"aten::_copy_from",
                                                        "aten::_copy_from_and_resize",
                                                        "aten::_efficientzerotensor",
                                                        "aten::_has_same_storage_numel",
                                                        "aten::_local_scalar_dense",
                                                        "aten::_pin_memory",
                                                        "aten::_resize_output_",
                                                        "aten::_use_cudnn_ctc_loss",
                                                        "aten::empty",
                                                        "aten::empty_strided",
                                                        "aten::is_pinned",
                                                        "aten::is_set_to",
                                                        "aten::record_stream",
                                                        "aten::resize_",
                                                        "aten::set_",
                                                        "aten::set_data"};
  return names.count(name) != 0;
}

/// Their results are sparse, nested or quantized tensors, whose memory is several tensors.
bool is_not_strided(const std::string& name) {
  for (const char* prefix : {"aten::_to_sparse", "aten::_nested", "aten::quantize", "aten::_make_per_"}) {
    if (name.find(prefix) == 0) {
      return true;
    }
  }
  return false;
}

/// They have one kernel for all devices, which calls cuDNN or a CUDA kernel itself.
bool is_kernel_of_all_devices(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::_convolution", "aten::conj_physical_", "aten::convolution", "aten::convolution_backward", "aten::mode"};
  return names.count(name) != 0;
}

bool is_emulated(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return (op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) || is_kernel_of_all_devices(name)) &&
         op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) && !is_view(op.schema()) && !is_torchs_own(name) &&
         !is_not_strided(name);
}

bool install() {
  const NoWarnings no_warnings;  // that kernels are registered anew
  auto& library = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && name.getNamespace() == "aten" && is_emulated(*op)) {
      library.impl(c10::toString(name).c_str(),
                   torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(*op)));
    }
  }
  install_overrides(library);
  at::globalContext().setUserEnabledCuDNN(false);  // batch norm and RNNs would call it
  return true;
}

[[maybe_unused]] const bool installed = install();

}  // namespace
}  // namespace emulator
