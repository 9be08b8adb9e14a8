#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace emulator {

/// Memory of the devices and pinned memory of the host: both are the process's own memory, at one address for both
/// sides (as with unified virtual addressing). Any thread.
namespace memory {

/// Bytes are 0xFF: floating-point numbers that nobody wrote are NaN. Blocks of a device are the current one's, and
/// count against its size.
cudaError_t allocate(void** block, std::size_t bytes, cudaMemoryType type);
/// Null does nothing.
cudaError_t release(void* block);
/// Pins memory that the caller owns.
cudaError_t add(void* block, std::size_t bytes);
cudaError_t remove(void* block);

/// cudaMemoryTypeUnregistered: ordinary (pageable) memory of the host.
cudaMemoryType type_of(const void* pointer);
/// Whether the whole range lies in one block.
bool contains(std::uintptr_t begin, std::uintptr_t end);
/// Whether a device's kernels may touch the block that contains the address: not another device's, which is no peer.
bool is_reachable(std::uintptr_t address, int device);
/// The device of the block that contains it; 0 if none does.
int device_of(const void* pointer);
std::size_t used(int device);

}  // namespace memory
}  // namespace emulator
