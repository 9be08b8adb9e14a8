// What nvcc's host code calls: registration of kernels and variables, and launches. A launched kernel of which the
// numerics know nothing is hollow: it takes its time in its stream and computes nothing, and its name is noted.
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "calls.h"
#include "emulator.h"

using namespace emulator;

namespace {

struct Symbol {
  void* memory;
  std::size_t bytes;
};

struct Image {
  std::mutex mutex;  // guards every field below
  std::unordered_map<const void*, const char*> kernels;
  std::unordered_map<const void*, Symbol> symbols;
};

Image& image() {
  static Image* const all = new Image;  // registrations come before static objects of ours
  return *all;
}

const char* name_of(const void* function) {
  std::lock_guard lock(image().mutex);
  const auto found = image().kernels.find(function);
  return found == image().kernels.end() ? "an unregistered kernel" : found->second;
}

void* memory_of(const void* symbol) {
  std::lock_guard lock(image().mutex);
  Symbol& found = image().symbols[symbol];
  if (found.memory == nullptr) {
    found.memory = std::calloc(1, std::max<std::size_t>(found.bytes, 8));
  }
  return found.memory;
}

/// torch.cuda._sleep's kernel waits for a number of cycles, of which this device has two in a nanosecond.
cudaError_t spin(std::int64_t cycles, cudaStream_t handle) {
  return launch_call(handle, [&](const auto& stream) {
    return submit(stream, {.name = "spin_kernel", .duration = std::chrono::nanoseconds(cycles / 2)});
  });
}

cudaError_t launch(const void* function, void** arguments, cudaStream_t stream) {
  const char* const name = name_of(function);
  if (std::strstr(name, "spin_kernel") != nullptr) {
    return spin(*static_cast<std::int64_t*>(arguments[0]), stream);
  }
  return static_cast<cudaError_t>(emulator_launch_hollow(stream, name));
}

struct Configuration {
  dim3 grid;
  dim3 block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;  // of `kernel<<<...>>>`, until its launch

}  // namespace

API void** __cudaRegisterFatBinary(void*) {
  static void* handle[8];
  return handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API char __cudaInitModule(void**) {
  return 1;
}

API void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                                int*) {
  std::lock_guard lock(image().mutex);
  image().kernels[host] = name;
}

API void __cudaRegisterVar(void**, char* host, char*, const char*, int, std::size_t bytes, int, int) {
  std::lock_guard lock(image().mutex);
  image().symbols[host] = {nullptr, bytes};
}

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, struct CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  const Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}

API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, std::size_t,
                                   cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}

API cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, std::size_t, cudaStream_t stream) {
  return launch(function, arguments, stream);
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return launch(function, arguments, config->stream);
}

API cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void** arguments, std::size_t,
                                            cudaStream_t stream) {
  return launch(function, arguments, stream);
}

API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = 90;
  attributes->ptxVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 232448;
  return cudaSuccess;
}

API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, std::size_t) {
  *blocks = 2;
  return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, std::size_t,
                                                                       unsigned) {
  *blocks = 2;
  return cudaSuccess;
}

API cudaError_t cudaGetSymbolAddress(void** memory, const void* symbol) {
  *memory = memory_of(symbol);
  return cudaSuccess;
}

API cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, std::size_t bytes, std::size_t offset,
                                   cudaMemcpyKind) {
  std::memcpy(static_cast<char*>(memory_of(symbol)) + offset, from, bytes);
  return cudaSuccess;
}
