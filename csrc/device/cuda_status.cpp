#include "device/cuda_status.h"

#include <fmt/format.h>

#ifdef TORCHSHARE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace torchshare {

#ifdef TORCHSHARE_WITH_CUDA

std::string cuda_status() {
  constexpr int kMajor = 1000;
  const std::string built = fmt::format("built with CUDA {}.{}", CUDART_VERSION / kMajor, CUDART_VERSION % kMajor / 10);
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
    return fmt::format("{}; no device: {}", built, cudaGetErrorString(error));
  }
  const int driver = cuda_driver_version();
  int lowest = 0;
  int highest = 0;
  cudaDeviceGetStreamPriorityRange(&lowest, &highest);
  return fmt::format("{}; driver for CUDA {}.{}; devices: {}; stream priorities {} to {}", built, driver / kMajor,
                     driver % kMajor / 10, devices, lowest, highest);
}

int cuda_device_count() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

int cuda_driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

#else

std::string cuda_status() {
  return "built without CUDA";
}

int cuda_device_count() {
  return 0;
}

int cuda_driver_version() {
  return 0;
}

#endif

}  // namespace torchshare
