// The CUDA runtime's calls about the device, errors and the version. docs.nvidia.com/cuda/cuda-runtime-api
#include <cstdio>
#include <cstring>

#include "calls.h"
#include "memory.h"

using namespace emulator;

API cudaError_t cudaGetDeviceCount(int* count) {
  const cudaError_t error = enter_without_device(__func__);
  *count = error == cudaSuccess ? Settings::get().devices : 0;
  if (error == cudaSuccess) {
    load_numerics();
  }
  return leave(__func__, error);
}

API cudaError_t cudaSetDevice(int device) {
  return call(__func__, [&] {
    if (!is_device(device)) {
      return cudaErrorInvalidDevice;
    }
    current_device() = device;
    return cudaSuccess;
  });
}

API cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return leave(__func__, enter_without_device(__func__));
}

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) {
    return leave(__func__, cudaErrorInvalidDevice);
  }
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "Emulated CUDA device");
  std::strcpy(properties->uuid.bytes, "emulated device");
  properties->uuid.bytes[15] = static_cast<char>(device);
  properties->pciBusID = device + 1;
  properties->totalGlobalMem = Settings::get().memory;
  properties->sharedMemPerBlock = 49152;
  properties->sharedMemPerBlockOptin = 232448;
  properties->sharedMemPerMultiprocessor = 233472;
  properties->regsPerBlock = 65536;
  properties->regsPerMultiprocessor = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->totalConstMem = 65536;
  properties->major = 9;
  properties->minor = 0;
  properties->textureAlignment = 512;
  properties->multiProcessorCount = kMultiprocessors;
  properties->unifiedAddressing = 1;
  properties->canMapHostMemory = 1;
  properties->concurrentKernels = 1;
  properties->asyncEngineCount = 3;
  properties->memoryBusWidth = 5120;
  properties->l2CacheSize = 50 << 20;
  properties->streamPrioritiesSupported = 1;
  properties->cooperativeLaunch = 1;
  properties->managedMemory = 1;
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 232448;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = 49152;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = 2048;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = 2147483647;
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *value = 65535;
      break;
    default:
      *value = 0;  // without the feature
  }
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) {
    *least = kLowestPriority;
  }
  if (greatest != nullptr) {
    *greatest = kHighestPriority;
  }
  return leave(__func__, enter_without_device(__func__));
}

API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return leave(__func__, cudaErrorPeerAccessUnsupported);
}

API cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return leave(__func__, enter_without_device(__func__));
}

API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

API cudaError_t cudaDeviceSynchronize() {
  return unsafe_call(__func__, [] {
    synchronize_device(current_device());
    return static_cast<cudaError_t>(lost_by());
  });
}

// "Note that this call will reset the error to cudaSuccess", but an error by which the device was lost stays.
API cudaError_t cudaGetLastError() {
  const cudaError_t error = std::exchange(last_error(), cudaSuccess);
  return lost_by() != 0 ? static_cast<cudaError_t>(lost_by()) : error;
}

API cudaError_t cudaPeekAtLastError() {
  return lost_by() != 0 ? static_cast<cudaError_t>(lost_by()) : last_error();
}

// cudaGetErrorName and cudaGetErrorString are NVIDIA's own: tables that need no device.

API cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}
API cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}
