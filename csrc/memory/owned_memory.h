#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "memory/memory_budget.h"
#include "memory/system_memory.h"

namespace torchshare {

/// A job as an owner of memory on one type of device. Any thread.
///
/// Note [Owned memory]
/// An allocator of ours wraps torch's. On a job's thread it reserves the bytes in the job's budget, calls torch's
/// allocator, records the reservation in the owner's ledger, and replaces torch's deleter by its own: a block is
/// returned to the budget that paid for it, whichever thread frees it.
/// Each owner has its own deleter, all of them the same code: comparing one pointer tells who owns a tensor, which is
/// how tensors that cross jobs are found. torch's pools (MemPool) could do the counting on CUDA. But while one is in
/// use, torch 2.11 behaves for all threads as if a graph were being captured: memory that other streams have used is
/// not released, and the cache is not freed when the device is full (pytorch/pytorch issues 159674, 175015). Jobs'
/// blocks stay apart without pools, because torch reuses a block only on the stream it was allocated on.
/// On the CPU, an owner also has a cache of large blocks, see Note [Block cache]. Blocks that it hands out are in the
/// ledger as well, so a block returns to the cache it came from, whichever thread frees it.
class MemoryOwner {
 public:
  struct Options {
    bool meters = true;   ///< reserve bytes in the budget
    bool caches = false;  ///< keep large blocks that are freed, below the budget's limit
    bool shared = false;  ///< not identified by its deleter
  };

  /// `device`: without an index, all devices of that type.
  MemoryOwner(std::shared_ptr<MemoryBudget> budget, c10::Device device, Options options);
  MemoryOwner(std::shared_ptr<MemoryBudget> budget, c10::Device device)
      : MemoryOwner(std::move(budget), device, Options()) {}
  ~MemoryOwner();
  MemoryOwner(const MemoryOwner&) = delete;  // its deleter is its own
  MemoryOwner& operator=(const MemoryOwner&) = delete;

  const std::shared_ptr<MemoryBudget>& budget() const { return budget_; }
  c10::Device device() const { return device_; }
  /// Throws a ValueError for a device of that type which is not the owner's: the owner has no stream, generator or gate
  /// there. `what`: what would use it.
  void check_device(c10::Device used, std::string_view what) const {
    if (used != device_ && used.type() == device_.type() && device_.has_index()) [[unlikely]] {
      refuse_device(used, what);
    }
  }
  c10::DeleterFnPtr deleter() const { return deleter_; }
  bool meters() const { return options_.meters; }
  bool caches() const { return options_.caches; }
  /// Whether it has a deleter of its own. If not, it has no cache, and is never another's other owner.
  bool is_identified() const;
  /// Returns all cached memory to the kernel.
  void trim() const;
  /// The budget of another owner of this memory that still exists; null if there is none.
  std::shared_ptr<MemoryBudget> other_owner(const c10::DataPtr& data) const;

 private:
  /// Takes the first free ledger that has at most that many blocks of former owners.
  bool take_ledger(std::size_t most_blocks);
  [[noreturn]] void refuse_device(c10::Device used, std::string_view what) const;

  const std::shared_ptr<MemoryBudget> budget_;
  const c10::Device device_;
  c10::DeleterFnPtr deleter_ = nullptr;
  Options options_;
};

/// The calling thread works for `owner`, until the destructor, and the memory that it allocates belongs to it; for no
/// owner if null, also within the scope of one. Same thread.
class MemoryScope {
 public:
  explicit MemoryScope(std::shared_ptr<MemoryOwner> owner);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;  // bound to a thread
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  std::shared_ptr<MemoryOwner> former_;
};

/// Caches large blocks also for threads that have no owner, or no longer: trims the cache then.
void cache_memory_of_process(bool enabled);

// For allocators. Any thread.

/// The calling thread's owner if it owns memory of this type of device; else that of the process, or null.
const MemoryOwner* memory_owner(c10::DeviceType device);
/// True if the deleter is one that `own` sets.
bool is_owners(c10::DeleterFnPtr deleter);
/// Makes `owner` the owner of a block from torch's allocator, paid for with `reservation`.
c10::DataPtr own(c10::DataPtr data, const MemoryOwner& owner, Reservation reservation);
void own(void* block, c10::DeleterFnPtr release, const MemoryOwner& owner, Reservation reservation);
/// A block from the owner's cache, paid for with `reservation`. Null, with the reservation unchanged, if the owner has
/// none, the block is too small for it, or the kernel refuses.
void* allocate_cached(std::size_t bytes, const MemoryOwner& owner, Reservation& reservation);
/// Returns the block's bytes to its budget and the block to its allocator or cache; false if it has no owner.
bool disown(void* block);
/// Each owner trims its cache in its next use after a shortage.
ShortageCount& shortage_count();
/// Returns the cached memory of all owners to the kernel; false if there was none.
bool trim_caches();

}  // namespace torchshare
