#include "memory/owned_memory.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

#include "memory/block_cache.h"

namespace torchshare {
namespace {

constexpr std::size_t kDeleters = 64;  // the process and further owners share the first, which identifies none

struct OwnedBlock {
  Reservation reservation;
  c10::DeleterFnPtr release;  // torch's; null if the block is of the ledger's cache
};

/// The blocks of one owner: a thread that allocates and frees its own blocks never waits for another owner.
struct alignas(64) Ledger {
  std::atomic<std::size_t> size{0};  // of `blocks`; 0: a block to be freed is not here
  std::mutex mutex;                  // guards every field below
  std::unordered_map<void*, OwnedBlock> blocks;
  std::shared_ptr<MemoryBudget> owner;  // null: the remaining blocks are of former owners
  BlockCache cache;
  std::uint64_t shortages = 0;  // that were known when the cache was trimmed last

  Ledger() { cache.reset(0); }
  void add(void* block, OwnedBlock owned) {
    blocks.insert_or_assign(block, std::move(owned));
    size.store(blocks.size(), std::memory_order_relaxed);
  }
  void trim_if_short(BlockCache::Time now) {
    if (const std::uint64_t found = shortage_count().look(now); found != shortages) {
      shortages = found;
      cache.trim(0);
    }
  }
};

using Ledgers = std::array<Ledger, kDeleters>;

Ledgers& ledgers() {
  static Ledgers* const all = new Ledgers;  // outlives the tensors of static objects
  return *all;
}

thread_local std::shared_ptr<MemoryOwner> thread_owner;
std::atomic<const MemoryOwner*> process_owner = nullptr;
std::atomic<std::size_t> used_ledgers = 1;  // the first ones

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

/// False if the ledger does not have the block.
bool release_from(Ledger& ledger, void* block) {
  if (ledger.size.load(std::memory_order_relaxed) == 0) {
    return false;
  }
  OwnedBlock owned;
  {
    std::lock_guard lock(ledger.mutex);
    const auto found = ledger.blocks.extract(block);
    if (found.empty()) {
      return false;
    }
    owned = std::move(found.mapped());
    ledger.size.store(ledger.blocks.size(), std::memory_order_relaxed);
    if (owned.release == nullptr) {
      c10::profiledCPUMemoryReporter().Delete(block);
      const auto now = BlockCache::Time::clock::now();
      ledger.cache.free(block, static_cast<std::size_t>(owned.reservation.bytes()), now);
      ledger.trim_if_short(now);
      if (ledger.owner != nullptr) {
        ledger.owner->record_cached(static_cast<std::int64_t>(ledger.cache.cached()));
      }
      return true;
    }
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

Ledger& ledger_of(const MemoryOwner& owner) {
  return ledgers()[index_of(owner.deleter())];
}

}  // namespace

MemoryOwner::MemoryOwner(std::shared_ptr<MemoryBudget> budget, c10::Device device, Options options)
    : budget_(std::move(budget)), device_(device), deleter_(kAllDeleters[0]), options_(options) {
  static const int once = pthread_atfork(&lock_ledgers, &unlock_ledgers, &forget_owner_after_fork);
  (void)once;
  if (options_.shared) {
    return;
  }
  // What former owners left in a ledger counts against its cache's ceiling, so that an empty one is preferred.
  if (!take_ledger(0) && !take_ledger(SIZE_MAX)) {
    options_.caches = false;
  }
}

bool MemoryOwner::take_ledger(std::size_t most_blocks) {
  for (std::size_t index = 1; index < kDeleters; ++index) {
    Ledger& ledger = ledgers()[index];
    std::lock_guard lock(ledger.mutex);
    if (ledger.owner == nullptr && ledger.blocks.size() <= most_blocks) {
      ledger.owner = budget_;
      ledger.cache.reset(options_.caches ? static_cast<std::size_t>(budget_->limit()) : 0);
      deleter_ = kAllDeleters[index];
      used_ledgers.store(std::max(used_ledgers.load(), index + 1));
      return true;
    }
  }
  return false;
}

MemoryOwner::~MemoryOwner() {
  if (const std::size_t index = index_of(deleter_); index > 0) {
    Ledger& ledger = ledgers()[index];
    std::lock_guard lock(ledger.mutex);
    ledger.owner = nullptr;
    ledger.cache.reset(0);
  }
}

bool MemoryOwner::is_identified() const {
  return index_of(deleter_) > 0;
}

void MemoryOwner::trim() const {
  Ledger& ledger = ledger_of(*this);
  std::lock_guard lock(ledger.mutex);
  ledger.cache.trim(0);
}

void MemoryOwner::refuse_device(c10::Device used, std::string_view what) const {
  TORCH_CHECK_VALUE(false, "job '", budget_->job(), "': ", what, " would use ", used, ", and its runtime is on ",
                    device_, "; a job uses one GPU: give Runtime(device='", used,
                    "'), or hide the other GPUs with CUDA_VISIBLE_DEVICES. A model on several needs a rank on each");
}

std::shared_ptr<MemoryBudget> MemoryOwner::other_owner(const c10::DataPtr& data) const {
  const c10::DeleterFnPtr deleter = data.get_deleter();
  if (deleter == deleter_ || data.device().type() != device_.type()) {
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
  TORCH_INTERNAL_ASSERT(thread_owner == nullptr || owner == nullptr, "one job per thread");
  former_ = std::exchange(thread_owner, std::move(owner));
}

MemoryScope::~MemoryScope() {
  thread_owner = std::move(former_);
}

ShortageCount& shortage_count() {
  static ShortageCount* const count = new ShortageCount;  // lives as long as the ledgers
  return *count;
}

bool is_owners(c10::DeleterFnPtr deleter) {
  return index_of(deleter) < kDeleters;
}

void cache_memory_of_process(bool enabled) {
  // Outlives the threads that still allocate while the process exits.
  static const MemoryOwner& owner = *new MemoryOwner(std::make_shared<MemoryBudget>("process"), c10::DeviceType::CPU,
                                                     {.meters = false, .caches = true, .shared = true});
  Ledger& ledger = ledgers()[0];
  std::lock_guard lock(ledger.mutex);
  ledger.cache.reset(enabled ? SIZE_MAX : 0);
  process_owner.store(enabled ? &owner : nullptr);
}

const MemoryOwner* memory_owner(c10::DeviceType device) {
  if (thread_owner != nullptr && thread_owner->device().type() == device) {
    return thread_owner.get();
  }
  return device == c10::DeviceType::CPU ? process_owner.load(std::memory_order_relaxed) : nullptr;
}

c10::DataPtr own(c10::DataPtr data, const MemoryOwner& owner, Reservation reservation) {
  const c10::DeleterFnPtr torchs = data.get_deleter();
  if (data.get_context() != nullptr) {
    own(data.get_context(), torchs, owner, std::move(reservation));
    (void)data.compare_exchange_deleter(torchs, owner.deleter());
  }
  return data;
}

void own(void* block, c10::DeleterFnPtr release, const MemoryOwner& owner, Reservation reservation) {
  owner.budget()->record_peak();
  Ledger& ledger = ledger_of(owner);
  std::lock_guard lock(ledger.mutex);
  ledger.add(block, {std::move(reservation), release});
}

void* allocate_cached(std::size_t bytes, const MemoryOwner& owner, Reservation& reservation) {
  if (!owner.caches() || bytes < BlockCache::kSmallest) {
    return nullptr;
  }
  const auto now = BlockCache::Time::clock::now();
  Ledger& ledger = ledger_of(owner);
  std::lock_guard lock(ledger.mutex);
  ledger.trim_if_short(now);
  void* const block = ledger.cache.allocate(bytes, now);
  if (block != nullptr) {
    try {
      ledger.add(block, {std::move(reservation), nullptr});
    } catch (const std::bad_alloc&) {
      ledger.cache.free(block, bytes, now);
      throw;
    }
    owner.budget()->record_peak();
    c10::profiledCPUMemoryReporter().New(block, bytes);
  }
  return block;
}

/// A thread mostly frees what it allocated, so its own ledger comes first.
bool disown(void* block) {
  const std::size_t own = thread_owner != nullptr ? index_of(thread_owner->deleter()) : 0;
  if (release_from(ledgers()[own], block)) {
    return true;
  }
  const std::size_t used = used_ledgers.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < used; ++i) {
    if (i != own && release_from(ledgers()[i], block)) {
      return true;
    }
  }
  return false;
}

bool trim_caches() {
  bool trimmed = false;
  for (Ledger& ledger : ledgers()) {
    std::lock_guard lock(ledger.mutex);
    trimmed |= ledger.cache.cached() > 0;
    ledger.cache.trim(0);
  }
  return trimmed;
}

}  // namespace torchshare
