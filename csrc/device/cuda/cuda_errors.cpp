#include "device/cuda/cuda_errors.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

namespace torchshare {

bool is_done(cudaStream_t stream) {
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  return is_done(cudaStreamQuery(stream));
}

std::optional<std::string> lasting_error(c10::DeviceIndex device) {
  try {
    const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);  // another thread may capture
    (void)c10::cuda::getDefaultCUDAStream(device).query();
    return std::nullopt;
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return text.substr(0, text.find('\n'));
  }
}

}  // namespace torchshare
