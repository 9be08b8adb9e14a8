#include "device/cuda/driver.h"

#include <fmt/format.h>

#include <stdexcept>

namespace torchshare {
namespace {

template <class Function>
Function find(const char* name, unsigned int version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    (void)cudaGetLastError();  // what is thrown here is not left to the thread's next kernel launch
    throw std::runtime_error(fmt::format("the CUDA driver has no {} of version {}: {}", name, version,
                                         error != cudaSuccess ? cudaGetErrorString(error) : "it is too old"));
  }
  return reinterpret_cast<Function>(function);
}

Driver load() {
  // The versions are those in the names of the types.
  return {.get_error_string = find<PFN_cuGetErrorString_v6000>("cuGetErrorString", 6000),
          .stream_write_value = find<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32", 11070),
          .device_get = find<PFN_cuDeviceGet_v2000>("cuDeviceGet", 2000),
          .device_get_resource = find<PFN_cuDeviceGetDevResource_v12040>("cuDeviceGetDevResource", 12040),
          .split_sms = find<PFN_cuDevSmResourceSplitByCount_v12040>("cuDevSmResourceSplitByCount", 12040),
          .describe_resource = find<PFN_cuDevResourceGenerateDesc_v12040>("cuDevResourceGenerateDesc", 12040),
          .green_context_create = find<PFN_cuGreenCtxCreate_v12040>("cuGreenCtxCreate", 12040),
          .green_context_destroy = find<PFN_cuGreenCtxDestroy_v12040>("cuGreenCtxDestroy", 12040),
          .green_context_stream_create = find<PFN_cuGreenCtxStreamCreate_v12050>("cuGreenCtxStreamCreate", 12050)};
}

}  // namespace

const Driver& Driver::get() {
  static const Driver driver = load();
  return driver;
}

void Driver::check(CUresult result, const char* call) const {
  if (result != CUDA_SUCCESS) {
    const char* text = nullptr;
    get_error_string(result, &text);
    throw std::runtime_error(fmt::format("{}: {}", call, text != nullptr ? text : "unknown error"));
  }
}

}  // namespace torchshare
