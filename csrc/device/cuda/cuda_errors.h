#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDAException.h>

#include <optional>
#include <string>

namespace torchshare {

/// Whether the work is done, from the result of cudaEventQuery or cudaStreamQuery. Throws if that is an error. By
/// CUDA's programming guide (Error Checking), cudaErrorNotReady is none, and cudaGetLastError does not report it; torch
/// clears it all the same, because otherwise it would be taken for the error of the thread's next kernel launch.
inline bool is_done(cudaError_t queried) {
  if (queried == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  C10_CUDA_CHECK(queried);
  return true;
}

/// Whether the stream's work is done; the stream is not being captured. Throws the device's error. Any thread, also one
/// that captures: a query in another mode would invalidate its capture.
bool is_done(cudaStream_t stream);

/// The error of a kernel that has corrupted the device's context: the driver answers every call with it until the
/// process ends. Nothing while the device is usable. Any thread.
std::optional<std::string> lasting_error(c10::DeviceIndex device);

}  // namespace torchshare
