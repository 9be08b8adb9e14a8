#include "memory/cpu_memory.h"

#include <c10/core/CPUAllocator.h>

#include <cstdint>
#include <utility>

#include "memory/owned_memory.h"

namespace torchshare {
namespace {

class CpuMemory final : public c10::Allocator {
 public:
  explicit CpuMemory(c10::Allocator& torchs) : torchs_(torchs) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    const MemoryOwner* const owner = bytes > 0 ? memory_owner(c10::DeviceType::CPU) : nullptr;
    if (owner == nullptr) {
      return from_torch(bytes);
    }
    Reservation reservation(owner->meters() ? owner->budget() : nullptr, static_cast<std::int64_t>(bytes));
    if (void* const block = allocate_cached(bytes, *owner, reservation)) {
      return {block, block, owner->deleter(), c10::DeviceType::CPU};
    }
    return owner->meters() ? own(from_torch(bytes), *owner, std::move(reservation)) : from_torch(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { torchs_.copy_data(to, from, bytes); }

 private:
  static void release(void* block);

  /// Cached memory is given up before torch reports that there is none.
  c10::DataPtr from_torch(std::size_t bytes) {
    try {
      return torchs_.allocate(bytes);
    } catch (const c10::Error&) {
      if (!trim_caches()) {
        throw;
      }
    }
    return torchs_.allocate(bytes);
  }

  c10::Allocator& torchs_;
};

CpuMemory& cpu_memory() {
  static CpuMemory* const memory = new CpuMemory(*c10::GetCPUAllocator());
  return *memory;
}

c10::DeleterFnPtr torchs_cpu_deleter = nullptr;  // written once, before `release` can be called

void CpuMemory::release(void* block) {
  if (!disown(block)) {
    torchs_cpu_deleter(block);
  }
}

bool install_cpu_memory_once() {
  constexpr std::uint8_t kPriority = 255;  // torch's own is 0
  torchs_cpu_deleter = c10::GetCPUAllocator()->raw_deleter();
  c10::SetCPUAllocator(&cpu_memory(), kPriority);
  return true;
}

}  // namespace

void install_cpu_memory() {
  static const bool installed = install_cpu_memory_once();
  (void)installed;
}

}  // namespace torchshare
