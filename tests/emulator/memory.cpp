#include "memory.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "device.h"
#include "race_check.h"

namespace emulator::memory {
namespace {

constexpr std::size_t kPage = 4096;

struct Block {
  std::uintptr_t end;
  cudaMemoryType type;
  int device;
};

struct Blocks {
  std::mutex mutex;  // guards every field below
  std::map<std::uintptr_t, Block> by_begin;
  std::vector<std::size_t> used = std::vector<std::size_t>(static_cast<std::size_t>(Settings::get().devices));

  std::size_t& used_on(int device) { return used.at(static_cast<std::size_t>(device)); }
  /// With `mutex` held: the block that contains the address, or the end.
  std::map<std::uintptr_t, Block>::iterator find(std::uintptr_t address) {
    auto after = by_begin.upper_bound(address);
    if (after == by_begin.begin() || (--after)->second.end <= address) {
      return by_begin.end();
    }
    return after;
  }
};

Blocks& blocks() {
  static Blocks* const all = new Blocks;  // tensors of static objects outlive ours
  return *all;
}

std::uintptr_t address(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

/// Forgets the block that begins there, and who has accessed it. False if there is none.
bool take_out(const void* block) {
  std::uintptr_t end = 0;
  {
    std::lock_guard lock(blocks().mutex);
    const auto found = blocks().by_begin.find(address(block));
    if (found == blocks().by_begin.end()) {
      return false;
    }
    end = found->second.end;
    if (found->second.type == cudaMemoryTypeDevice) {
      blocks().used_on(found->second.device) -= end - address(block);
    }
    blocks().by_begin.erase(found);
  }
  std::lock_guard order(RaceCheck::get().mutex);
  RaceCheck::get().forget(address(block), end);
  return true;
}

}  // namespace

cudaError_t allocate(void** block, std::size_t bytes, cudaMemoryType type) {
  *block = nullptr;
  if (bytes == 0) {
    return cudaSuccess;
  }
  const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
  std::lock_guard lock(blocks().mutex);
  const bool on_device = type == cudaMemoryTypeDevice;
  std::size_t& used = blocks().used_on(current_device());
  if (on_device && size > Settings::get().memory - used) {
    return cudaErrorMemoryAllocation;
  }
  *block = std::aligned_alloc(kPage, size);
  if (*block == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  std::memset(*block, 0xff, size);
  blocks().by_begin[address(*block)] = {address(*block) + size, type, current_device()};
  used += on_device ? size : 0;
  return cudaSuccess;
}

cudaError_t release(void* block) {
  if (block == nullptr) {
    return cudaSuccess;
  }
  if (!take_out(block)) {
    return cudaErrorInvalidValue;
  }
  std::free(block);
  return cudaSuccess;
}

cudaError_t add(void* block, std::size_t bytes) {
  std::lock_guard lock(blocks().mutex);
  if (bytes == 0 || block == nullptr) {
    return cudaErrorInvalidValue;
  }
  const Block added_block{address(block) + bytes, cudaMemoryTypeHost, current_device()};
  const bool added = blocks().by_begin.try_emplace(address(block), added_block).second;
  return added ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
}

cudaError_t remove(void* block) {
  return take_out(block) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}

cudaMemoryType type_of(const void* pointer) {
  std::lock_guard lock(blocks().mutex);
  const auto found = blocks().find(address(pointer));
  return found == blocks().by_begin.end() ? cudaMemoryTypeUnregistered : found->second.type;
}

bool contains(std::uintptr_t begin, std::uintptr_t end) {
  std::lock_guard lock(blocks().mutex);
  const auto found = blocks().find(begin);
  return found != blocks().by_begin.end() && end <= found->second.end;
}

bool is_reachable(std::uintptr_t address, int device) {
  std::lock_guard lock(blocks().mutex);
  const auto found = blocks().find(address);
  return found == blocks().by_begin.end() || found->second.type != cudaMemoryTypeDevice ||
         found->second.device == device;
}

int device_of(const void* pointer) {
  std::lock_guard lock(blocks().mutex);
  const auto found = blocks().find(address(pointer));
  return found == blocks().by_begin.end() ? 0 : found->second.device;
}

std::size_t used(int device) {
  std::lock_guard lock(blocks().mutex);
  return blocks().used_on(device);
}

}  // namespace emulator::memory
