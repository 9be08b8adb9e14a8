#include "memory/owned_memory.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace torchshare {
namespace {

constexpr std::size_t kDeleters = 64;  // further owners share the first, which identifies none

struct OwnedBlock {
  Reservation reservation;
  c10::DeleterFnPtr release;  // torch's
};

/// The blocks of one owner: a thread that allocates and frees its own blocks never waits for another owner.
struct alignas(64) Ledger {
  std::atomic<std::size_t> size{0};  // of `blocks`; 0: a block to be freed is not here
  std::mutex mutex;                  // guards every field below
  std::unordered_map<void*, OwnedBlock> blocks;
  std::shared_ptr<MemoryBudget> owner;  // null: the remaining blocks are of former owners
};

using Ledgers = std::array<Ledger, kDeleters>;

Ledgers& ledgers() {
  static Ledgers* const all = new Ledgers;  // outlives the tensors of static objects
  return *all;
}

thread_local std::shared_ptr<MemoryOwner> thread_owner;

// Held around a fork: otherwise the child could inherit a ledger locked by a thread that it does not have.
void lock_ledgers() {
  for (Ledger& ledger : ledgers()) {
    ledger.mutex.lock();
  }
}

void unlock_ledgers() {
  for (Ledger& ledger : ledgers()) {
    ledger.mutex.unlock();
  }
}

/// A forked child (a DataLoader worker) belongs to no job, and its memory is its own.
void forget_owner_after_fork() {
  unlock_ledgers();
  thread_owner.reset();
}

bool release_from(Ledger& ledger, void* block) {
  OwnedBlock owned;
  {
    std::lock_guard lock(ledger.mutex);
    const auto found = ledger.blocks.extract(block);
    if (found.empty()) {
      return false;
    }
    owned = std::move(found.mapped());
    ledger.size.store(ledger.blocks.size(), std::memory_order_relaxed);
  }
  owned.release(block);
  return true;
}

template <std::size_t index>
void release_owned(void* block) {
  release_from(ledgers()[index], block);
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
  static const int once = pthread_atfork(&lock_ledgers, &unlock_ledgers, &forget_owner_after_fork);
  (void)once;
  for (std::size_t index = 1; index < kDeleters; ++index) {
    Ledger& ledger = ledgers()[index];
    std::lock_guard lock(ledger.mutex);
    if (ledger.owner == nullptr) {
      ledger.owner = budget_;
      deleter_ = kAllDeleters[index];
      return;
    }
  }
}

MemoryOwner::~MemoryOwner() {
  if (const std::size_t index = index_of(deleter_); index > 0) {
    Ledger& ledger = ledgers()[index];
    std::lock_guard lock(ledger.mutex);
    ledger.owner = nullptr;
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
  // The deleter may have belonged to a job that has ended, and to another one since.
  Ledger& ledger = ledgers()[index];
  std::lock_guard lock(ledger.mutex);
  const auto block = ledger.blocks.find(data.get_context());
  return block != ledger.blocks.end() && block->second.reservation.budget() == ledger.owner ? ledger.owner : nullptr;
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
    own(data.get_context(), torchs, owner, std::move(reservation));
  }
  return data;
}

void own(void* block, c10::DeleterFnPtr release, const MemoryOwner& owner, Reservation reservation) {
  owner.budget()->record_peak();
  Ledger& ledger = ledgers()[index_of(owner.deleter())];
  std::lock_guard lock(ledger.mutex);
  ledger.blocks.insert_or_assign(block, OwnedBlock{std::move(reservation), release});
  ledger.size.store(ledger.blocks.size(), std::memory_order_relaxed);
}

/// A thread mostly frees what it allocated, so its own ledger comes first.
bool disown(void* block) {
  const std::size_t first = thread_owner != nullptr ? index_of(thread_owner->deleter()) : 0;
  for (std::size_t i = 0; i < kDeleters; ++i) {
    Ledger& ledger = ledgers()[(first + i) % kDeleters];
    if (ledger.size.load(std::memory_order_relaxed) > 0 && release_from(ledger, block)) {
      return true;
    }
  }
  return false;
}

}  // namespace torchshare
