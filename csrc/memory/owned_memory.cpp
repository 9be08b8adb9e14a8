#include "memory/owned_memory.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace torchshare {
namespace {

constexpr std::size_t kDeleters = 64;  // owners beyond that share the first, which tells nothing

struct OwnedBlock {
  Reservation reservation;
  c10::DeleterFnPtr release;  // torch's
};

struct Book {
  std::mutex mutex;  // guards every field below
  std::unordered_map<void*, OwnedBlock> blocks;
  std::array<std::shared_ptr<MemoryBudget>, kDeleters> owners;
};

Book& book() {
  static Book* const all = new Book;  // outlives the tensors of static objects
  return *all;
}

thread_local std::shared_ptr<MemoryOwner> thread_owner;

/// A forked child (a DataLoader worker) is no job, and its memory is its own.
void forget_owner_after_fork() {
  thread_owner.reset();
}

template <std::size_t index>
void release_owned(void* block) {
  disown(block);
}

template <std::size_t... index>
constexpr std::array<c10::DeleterFnPtr, kDeleters> make_deleters(std::index_sequence<index...>) {
  return {&release_owned<index>...};
}

constexpr std::array<c10::DeleterFnPtr, kDeleters> kAllDeleters = make_deleters(std::make_index_sequence<kDeleters>());

std::size_t index_of(c10::DeleterFnPtr deleter) {
  return static_cast<std::size_t>(std::find(kAllDeleters.begin(), kAllDeleters.end(), deleter) - kAllDeleters.begin());
}

class CpuMemory final : public c10::Allocator {
 public:
  explicit CpuMemory(c10::Allocator& torchs) : torchs_(torchs) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    const MemoryOwner* const owner = bytes > 0 ? memory_owner(c10::DeviceType::CPU) : nullptr;
    if (owner == nullptr) {
      return torchs_.allocate(bytes);
    }
    Reservation reservation(owner->budget(), static_cast<std::int64_t>(bytes));
    return own(torchs_.allocate(bytes), *owner, std::move(reservation));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { torchs_.copy_data(to, from, bytes); }

 private:
  static void release(void* block);

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

MemoryOwner::MemoryOwner(std::shared_ptr<MemoryBudget> budget, c10::DeviceType device)
    : budget_(std::move(budget)), device_(device), deleter_(kAllDeleters[0]) {
  static const int once = pthread_atfork(nullptr, nullptr, &forget_owner_after_fork);
  (void)once;
  std::lock_guard lock(book().mutex);
  auto& owners = book().owners;
  const auto free = std::find(owners.begin() + 1, owners.end(), nullptr);
  if (free != owners.end()) {
    *free = budget_;
    deleter_ = kAllDeleters[static_cast<std::size_t>(free - owners.begin())];
  }
}

MemoryOwner::~MemoryOwner() {
  const std::size_t index = index_of(deleter_);
  std::lock_guard lock(book().mutex);
  if (index > 0) {
    book().owners[index] = nullptr;
  }
}

std::shared_ptr<MemoryBudget> MemoryOwner::other_owner(const c10::DataPtr& data) const {
  const c10::DeleterFnPtr deleter = data.get_deleter();
  if (deleter == deleter_ || data.device().type() != device_) {
    return nullptr;
  }
  const std::size_t index = index_of(deleter);
  if (index == kDeleters) {
    return nullptr;
  }
  // The deleter may be that of a job that has ended, and another one's since.
  std::lock_guard lock(book().mutex);
  const auto block = book().blocks.find(data.get_context());
  const auto& owner = book().owners[index];
  return block != book().blocks.end() && block->second.reservation.budget() == owner ? owner : nullptr;
}

MemoryScope::MemoryScope(std::shared_ptr<MemoryOwner> owner) {
  TORCH_INTERNAL_ASSERT(thread_owner == nullptr, "one job per thread");
  thread_owner = std::move(owner);
}

MemoryScope::~MemoryScope() {
  thread_owner.reset();
}

void install_cpu_memory() {
  static const bool installed = install_cpu_memory_once();
  (void)installed;
}

bool is_owners(c10::DeleterFnPtr deleter) {
  return index_of(deleter) < kDeleters;
}

const MemoryOwner* memory_owner(c10::DeviceType device) {
  return thread_owner != nullptr && thread_owner->device() == device ? thread_owner.get() : nullptr;
}

c10::DataPtr own(c10::DataPtr data, const MemoryOwner& owner, Reservation reservation) {
  const c10::DeleterFnPtr torchs = data.get_deleter();
  if (data.get_context() != nullptr && data.compare_exchange_deleter(torchs, owner.deleter())) {
    own(data.get_context(), torchs, std::move(reservation));
  }
  return data;
}

void own(void* block, c10::DeleterFnPtr release, Reservation reservation) {
  std::lock_guard lock(book().mutex);
  book().blocks.insert_or_assign(block, OwnedBlock{std::move(reservation), release});
}

bool disown(void* block) {
  OwnedBlock owned;
  {
    std::lock_guard lock(book().mutex);
    const auto found = book().blocks.extract(block);
    if (found.empty()) {
      return false;
    }
    owned = std::move(found.mapped());
  }
  owned.release(block);
  return true;
}

}  // namespace torchshare
