// The CUDA driver's calls: what torch and torchshare look up by name and version, and what Triton's kernels need.
// docs.nvidia.com/cuda/cuda-driver-api
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "calls.h"
#include "emulator.h"
#include "memory.h"

using namespace emulator;

namespace {

/// The primary context of a device is its number and one.
CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<std::intptr_t>(device) + 1);
}

int device_of(CUcontext context) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(context)) - 1;
}

thread_local std::vector<int> pushed;  // devices that were current

using Resources = std::vector<CUdevResource>;

/// What a handle of a green context points to.
struct GreenContext {
  int device;
  Resources resources;
};

/// A resource's first multiprocessor, in the part of it that only the driver reads.
unsigned first_of(const CUdevResource& resource) {
  unsigned first = 0;
  std::memcpy(&first, resource._internal_padding, sizeof first);
  return first;
}

void set_first(CUdevResource& resource, unsigned first) {
  std::memcpy(resource._internal_padding, &first, sizeof first);
}

/// The multiprocessors that streams of green contexts may use.
struct Partitions {
  std::mutex mutex;  // guards what follows
  std::map<CUstream, Resources> of;
} partitions;

constexpr unsigned kPartition = 8;  // compute capability 9.0: SM counts are multiples of 8, and at least 8

}  // namespace

API CUresult cuInit(unsigned) {
  return CUDA_SUCCESS;
}

API CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return driver_call(__func__, [&] {
    *device = ordinal;
    return is_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  });
}

API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return static_cast<CUresult>(cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device));
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = context_of(device);
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = context_of(current_device());
  return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext context) {
  current_device() = context != nullptr ? device_of(context) : 0;
  return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent(CUcontext context) {
  pushed.push_back(current_device());
  return cuCtxSetCurrent(context);
}

API CUresult cuCtxPopCurrent(CUcontext* context) {
  *context = context_of(current_device());
  if (!pushed.empty()) {
    current_device() = pushed.back();
    pushed.pop_back();
  }
  return CUDA_SUCCESS;
}

// ---- logs of errors, of which the emulated driver writes none

API CUresult cuLogsRegisterCallback(CUlogsCallback, void*, CUlogsCallbackHandle* handle) {
  *handle = nullptr;
  return CUDA_SUCCESS;
}

API CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle) {
  return CUDA_SUCCESS;
}

// ---- stream memory operations

API CUresult cuStreamWriteValue32(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned) {
  return driver_call(__func__, [&] {
    const auto stream = Stream::of(handle);
    if (!stream || address % sizeof value != 0 || !memory::contains(address, address + sizeof value)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (forbid_in_capture_of(*stream) != cudaSuccess) {
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    stream->enqueue({.name = "write value",
                     .run = [=] { std::atomic_ref(*reinterpret_cast<std::uint32_t*>(address)).store(value); }});
    return CUDA_SUCCESS;
  });
}

// ---- green contexts

API CUresult cuDeviceGetDevResource(CUdevice, CUdevResource* resource, CUdevResourceType type) {
  return driver_call(__func__, [&] {
    if (type != CU_DEV_RESOURCE_TYPE_SM) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::memset(resource, 0, sizeof *resource);
    resource->type = type;
    resource->sm.smCount = kMultiprocessors;
    resource->sm.minSmPartitionSize = kPartition;
    resource->sm.smCoscheduledAlignment = kPartition;
    return CUDA_SUCCESS;
  });
}

API CUresult cuDevSmResourceSplitByCount(CUdevResource* groups, unsigned* count, const CUdevResource* from,
                                         CUdevResource* rest, unsigned, unsigned at_least) {
  return driver_call(__func__, [&] {
    if (from->type != CU_DEV_RESOURCE_TYPE_SM || at_least > from->sm.smCount) {
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    const unsigned size = std::max(kPartition, (at_least + kPartition - 1) / kPartition * kPartition);
    const unsigned most = from->sm.smCount / size;
    *count = groups == nullptr ? most : std::min(*count, most);
    for (unsigned group = 0; groups != nullptr && group < *count; ++group) {
      groups[group] = *from;
      groups[group].sm.smCount = size;
      set_first(groups[group], first_of(*from) + group * size);
    }
    if (rest != nullptr) {
      *rest = *from;
      rest->sm.smCount = from->sm.smCount - *count * size;
      set_first(*rest, first_of(*from) + *count * size);
    }
    return CUDA_SUCCESS;
  });
}

API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* resources, unsigned count) {
  return driver_call(__func__, [&] {
    if (count == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *description = reinterpret_cast<CUdevResourceDesc>(new Resources(resources, resources + count));
    return CUDA_SUCCESS;
  });
}

API CUresult cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc description, CUdevice device, unsigned flags) {
  return driver_call(__func__, [&] {
    if (flags != CU_GREEN_CTX_DEFAULT_STREAM) {  // "flags must be set"
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::unique_ptr<Resources> resources(reinterpret_cast<Resources*>(description));
    *context = reinterpret_cast<CUgreenCtx>(new GreenContext{device, *resources});
    return CUDA_SUCCESS;
  });
}

API CUresult cuGreenCtxDestroy(CUgreenCtx context) {
  delete reinterpret_cast<GreenContext*>(context);
  return CUDA_SUCCESS;
}

API CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx context, unsigned flags, int priority) {
  return driver_call(__func__, [&] {
    if ((flags & CU_STREAM_NON_BLOCKING) == 0) {  // "CU_STREAM_NON_BLOCKING: This must be specified"
      return CUDA_ERROR_INVALID_VALUE;
    }
    const GreenContext& green = *reinterpret_cast<GreenContext*>(context);
    *stream = Stream::create(green.device, priority, cudaStreamNonBlocking)->handle();
    const std::lock_guard lock(partitions.mutex);
    partitions.of[*stream] = green.resources;
    return CUDA_SUCCESS;
  });
}

/// For tests: marks the multiprocessors that a stream of a green context may use; none of another one.
API void emulator_multiprocessors(CUstream stream, bool (*may_use)[kMultiprocessors]) {
  const std::lock_guard lock(partitions.mutex);
  for (const CUdevResource& each : partitions.of[stream]) {
    std::fill_n(*may_use + first_of(each), each.sm.smCount, true);
  }
}

// ---- compiled kernels (Triton's, AOTInductor's): modules are empty, functions are their names, launches are hollow

namespace {

CUresult load_module(CUmodule* module) {
  *module = reinterpret_cast<CUmodule>(new char);
  return CUDA_SUCCESS;
}

}  // namespace

API CUresult cuModuleLoad(CUmodule* module, const char*) {
  return load_module(module);
}
API CUresult cuModuleLoadData(CUmodule* module, const void*) {
  return load_module(module);
}
API CUresult cuModuleLoadDataEx(CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
  return load_module(module);
}

API CUresult cuModuleUnload(CUmodule module) {
  delete reinterpret_cast<char*>(module);
  return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = reinterpret_cast<CUfunction>(strdup(name));
  return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
                                                                : 0;
  return CUDA_SUCCESS;
}

API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) {
  return CUDA_SUCCESS;
}
API CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) {
  return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, std::size_t) {
  *blocks = 2;
  return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  *clusters = 2;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetLimit(std::size_t* value, CUlimit) {
  *value = 1 << 20;
  return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(CUlimit, std::size_t) {
  return CUDA_SUCCESS;
}

API CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            CUstream stream, void**, void**) {
  return static_cast<CUresult>(emulator_launch_hollow(stream, reinterpret_cast<const char*>(function)));
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void**, void**) {
  return static_cast<CUresult>(emulator_launch_hollow(config->hStream, reinterpret_cast<const char*>(function)));
}

API CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  const bool known = memory::type_of(reinterpret_cast<void*>(pointer)) != cudaMemoryTypeUnregistered;
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER || !known) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *static_cast<CUdeviceptr*>(value) = pointer;
  return CUDA_SUCCESS;
}

// ---- entry points

/// Any function of ours, or a stand-in that aborts with its name; of a version up to the emulated driver's.
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                                 unsigned long long, cudaDriverEntryPointQueryResult* found) {
  const cudaError_t error = enter_without_device(__func__);
  static void* const own = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(&load_numerics), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  const bool is_new = version > kVersion;
  *function = nullptr;
  for (const char* const suffix : {"_v2", ""}) {  // cuda.h defines cuStreamWriteValue32 as cuStreamWriteValue32_v2
    if (error == cudaSuccess && !is_new && *function == nullptr) {
      *function = dlsym(own, (std::string(name) + suffix).c_str());
    }
  }
  if (found != nullptr) {
    *found = *function != nullptr ? cudaDriverEntryPointSuccess
             : is_new             ? cudaDriverEntryPointVersionNotSufficent
                                  : cudaDriverEntryPointSymbolNotFound;
  }
  return leave(__func__, error);
}
