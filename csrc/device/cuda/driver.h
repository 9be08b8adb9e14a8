#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <string>

namespace torchshare {

/// Driver functions that the runtime library lacks, looked up on first use, so that the library loads without a driver.
/// Any thread.
struct Driver {
  PFN_cuGetErrorString_v6000 get_error_string;
  PFN_cuStreamWriteValue32_v11070 stream_write_value;
  PFN_cuDeviceGet_v2000 device_get;
  PFN_cuDeviceGetDevResource_v12040 device_get_resource;
  PFN_cuDevSmResourceSplitByCount_v12040 split_sms;
  PFN_cuDevResourceGenerateDesc_v12040 describe_resource;
  PFN_cuGreenCtxCreate_v12040 green_context_create;
  PFN_cuGreenCtxDestroy_v12040 green_context_destroy;
  PFN_cuGreenCtxStreamCreate_v12050 green_context_stream_create;

  /// Throws std::runtime_error that names the missing function.
  static const Driver& get();
  /// Throws std::runtime_error with the driver's text if `result` is an error.
  void check(CUresult result, const char* call) const;
};

}  // namespace torchshare
