// The CUDA runtime's calls about memory. docs.nvidia.com/cuda/cuda-runtime-api, "Memory Management" and
// "API synchronization behavior" (pageable memory is staged; a copy into it returns when it is done).
#include <cstring>
#include <vector>

#include "calls.h"
#include "memory.h"

using namespace emulator;

namespace {

std::uintptr_t address(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

/// cudaFree and cudaFreeHost wait for the device (CUDA C++ Programming Guide, "Implicit Synchronization").
cudaError_t free_block(void* block) {
  if (block == nullptr) {
    return cudaSuccess;
  }
  synchronize_device(memory::device_of(block));
  return memory::release(block);
}

std::uint64_t checksum(const void* bytes, std::size_t size) {
  std::uint64_t sum = 1469598103934665603U;
  for (std::size_t i = 0; i < size; ++i) {
    sum = (sum ^ static_cast<const unsigned char*>(bytes)[i]) * 1099511628211U;
  }
  return sum;
}

/// The copy itself, where `from` is pinned: the host must leave it alone until the copy has run.
std::function<void()> copy_pinned(void* to, const void* from, std::size_t bytes) {
  return [=, before = checksum(from, bytes)] {
    if (checksum(from, bytes) != before) {
      RaceCheck::get().report(
          "race: the host writes pinned memory before a copy that was enqueued earlier has read it");
    }
    std::memmove(to, from, bytes);
  };
}

/// Rows of `width` bytes, `to_pitch` and `from_pitch` apart.
cudaError_t copy(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                 std::size_t rows, const std::shared_ptr<Stream>& stream, bool wait) {
  if (width == 0 || rows == 0) {
    return cudaSuccess;
  }
  const std::size_t to_size = (rows - 1) * to_pitch + width;
  const std::size_t from_size = (rows - 1) * from_pitch + width;
  const cudaMemoryType to_type = memory::type_of(to);
  const cudaMemoryType from_type = memory::type_of(from);
  const bool captured = is_captured(*stream);
  Work work{.name = "memcpy"};
  if (to_type != cudaMemoryTypeUnregistered) {
    work.accesses.push_back({address(to), address(to) + to_size, true, work.name});
  }
  if (from_type != cudaMemoryTypeUnregistered) {
    work.accesses.push_back({address(from), address(from) + from_size, false, work.name});
  }
  std::shared_ptr<std::vector<char>> staged;
  if (from_type == cudaMemoryTypeUnregistered && !captured) {
    staged =
        std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + from_size);
    from = staged->data();
  }
  if (from_type == cudaMemoryTypeHost && !captured && rows == 1) {
    work.run = copy_pinned(to, from, width);
  } else {
    work.run = [=] {
      (void)staged;  // kept until the copy has run
      for (std::size_t row = 0; row < rows; ++row) {
        std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
      }
    };
  }
  const cudaError_t error = submit(stream, std::move(work));
  if (error == cudaSuccess && !captured && (wait || to_type == cudaMemoryTypeUnregistered)) {
    stream->synchronize();
    return static_cast<cudaError_t>(lost_by());
  }
  return error;
}

cudaError_t set(void* block, int value, std::size_t bytes, const std::shared_ptr<Stream>& stream) {
  Work work{.name = "memset", .run = [=] { std::memset(block, value, bytes); }};
  work.accesses.push_back({address(block), address(block) + bytes, true, work.name});
  return submit(stream, std::move(work));
}

}  // namespace

API cudaError_t cudaMalloc(void** block, std::size_t bytes) {
  return unsafe_call(__func__, [&] { return memory::allocate(block, bytes, cudaMemoryTypeDevice); });
}

API cudaError_t cudaFree(void* block) {
  return unsafe_call(__func__, [&] { return free_block(block); });
}

API cudaError_t cudaHostAlloc(void** block, std::size_t bytes, unsigned) {
  return unsafe_call(__func__, [&] { return memory::allocate(block, bytes, cudaMemoryTypeHost); });
}

API cudaError_t cudaFreeHost(void* block) {
  return unsafe_call(__func__, [&] { return free_block(block); });
}

API cudaError_t cudaHostRegister(void* block, std::size_t bytes, unsigned) {
  return call(__func__, [&] { return memory::add(block, bytes); });
}

API cudaError_t cudaHostUnregister(void* block) {
  return call(__func__, [&] { return memory::remove(block); });
}

API cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  return call(__func__, [&] {
    *device = host;
    return memory::type_of(host) == cudaMemoryTypeHost ? cudaSuccess : cudaErrorInvalidValue;
  });
}

API cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call(__func__, [&] {
    *total = Settings::get().memory;
    *free = *total - memory::used(current_device());
    return cudaSuccess;
  });
}

API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return call(__func__, [&] {
    std::memset(attributes, 0, sizeof *attributes);
    attributes->type = memory::type_of(pointer);
    attributes->device = memory::device_of(pointer);
    if (attributes->type != cudaMemoryTypeUnregistered) {
      attributes->devicePointer = const_cast<void*>(pointer);
    }
    if (attributes->type == cudaMemoryTypeHost) {
      attributes->hostPointer = const_cast<void*>(pointer);
    }
    return cudaSuccess;
  });
}

API cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t handle) {
  return stream_call(__func__, handle,
                     [&](const auto& stream) { return copy(to, bytes, from, bytes, bytes, 1, stream, false); });
}

API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t handle) {
  return stream_call(__func__, handle,
                     [&](const auto& stream) { return copy(to, bytes, from, bytes, bytes, 1, stream, false); });
}

API cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                  std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t handle) {
  return stream_call(__func__, handle, [&](const auto& stream) {
    return copy(to, to_pitch, from, from_pitch, width, height, stream, false);
  });
}

API cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return unsafe_call(__func__, [&] {
    const cudaError_t error = use_legacy_stream();
    return error != cudaSuccess ? error
                                : copy(to, bytes, from, bytes, bytes, 1, Stream::legacy(current_device()), true);
  });
}

API cudaError_t cudaMemsetAsync(void* block, int value, std::size_t bytes, cudaStream_t handle) {
  return stream_call(__func__, handle, [&](const auto& stream) { return set(block, value, bytes, stream); });
}

API cudaError_t cudaMemset(void* block, int value, std::size_t bytes) {
  return unsafe_call(__func__, [&] {
    const cudaError_t error = use_legacy_stream();
    return error != cudaSuccess ? error : set(block, value, bytes, Stream::legacy(current_device()));
  });
}
