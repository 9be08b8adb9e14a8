#pragma once

#include <c10/core/Allocator.h>

#include <memory>

#include "memory/memory_budget.h"

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
class MemoryOwner {
 public:
  MemoryOwner(std::shared_ptr<MemoryBudget> budget, c10::DeviceType device);
  ~MemoryOwner();
  MemoryOwner(const MemoryOwner&) = delete;  // its deleter is its own
  MemoryOwner& operator=(const MemoryOwner&) = delete;

  const std::shared_ptr<MemoryBudget>& budget() const { return budget_; }
  c10::DeviceType device() const { return device_; }
  c10::DeleterFnPtr deleter() const { return deleter_; }
  /// The budget of another owner of this memory that still exists; null if there is none.
  std::shared_ptr<MemoryBudget> other_owner(const c10::DataPtr& data) const;

 private:
  const std::shared_ptr<MemoryBudget> budget_;
  const c10::DeviceType device_;
  c10::DeleterFnPtr deleter_ = nullptr;
};

/// Memory that the calling thread allocates belongs to `owner`, until the destructor; to no owner if null. Same thread.
class MemoryScope {
 public:
  explicit MemoryScope(std::shared_ptr<MemoryOwner> owner);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;  // bound to a thread
  MemoryScope& operator=(const MemoryScope&) = delete;
};

/// Wraps torch's CPU allocator in ours. Once per process; further calls do nothing.
void install_cpu_memory();

// For allocators. Any thread.

/// The calling thread's owner if it owns memory of this type of device; else null.
const MemoryOwner* memory_owner(c10::DeviceType device);
/// True if the deleter is one that `own` sets.
bool is_owners(c10::DeleterFnPtr deleter);
/// Makes `owner` the owner of a block from torch's allocator, paid for with `reservation`.
c10::DataPtr own(c10::DataPtr data, const MemoryOwner& owner, Reservation reservation);
void own(void* block, c10::DeleterFnPtr release, const MemoryOwner& owner, Reservation reservation);
/// Returns the block's bytes to its budget and the block to torch's allocator; false if it has no owner.
bool disown(void* block);

}  // namespace torchshare
