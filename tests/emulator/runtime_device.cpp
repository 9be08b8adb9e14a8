// The CUDA runtime's calls about the device, errors and the version. docs.nvidia.com/cuda/cuda-runtime-api
#include <cstdio>
#include <cstring>

#include "calls.h"
#include "memory.h"

using namespace emulator;

API cudaError_t cudaGetDeviceCount(int* count) {
  const cudaError_t error = enter_without_device(__func__);
  *count = error == cudaSuccess ? 1 : 0;
  if (error == cudaSuccess) {
    load_numerics();
  }
  return leave(__func__, error);
}

API cudaError_t cudaSetDevice(int device) {
  return call(__func__, [&] { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; });
}

API cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return leave(__func__, enter_without_device(__func__));
}

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) {
    return leave(__func__, cudaErrorInvalidDevice);
  }
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "Emulated CUDA device");
  std::strcpy(properties->uuid.bytes, "emulated device");
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

API cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:01:00.0");
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
    for (const auto& stream : Stream::all()) {
      stream->synchronize();
    }
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

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

// The texts are those of the driver's cuGetErrorString.
#define ERROR(name, text) {name, #name, text}
constexpr ErrorText kErrors[] = {
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInitializationError, "initialization error"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    ERROR(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    ERROR(cudaErrorAssert, "device-side assert triggered"),
    ERROR(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    ERROR(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    ERROR(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorNotPermitted, "operation not permitted"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    ERROR(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    ERROR(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    ERROR(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    ERROR(cudaErrorStreamCaptureImplicit,
          "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(cudaErrorStreamCaptureWrongThread,
          "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR(cudaErrorUnknown, "unknown error"),
};
#undef ERROR

const ErrorText& text_of(cudaError_t error) {
  for (const ErrorText& known : kErrors) {
    if (known.error == error) {
      return known;
    }
  }
  static constexpr ErrorText kUnnamed{cudaErrorUnknown, "cudaErrorUnnamed", "an error without a text in the emulator"};
  return kUnnamed;
}

}  // namespace

API const char* cudaGetErrorName(cudaError_t error) {
  return text_of(error).name;
}
API const char* cudaGetErrorString(cudaError_t error) {
  return text_of(error).text;
}
API cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}
API cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}
