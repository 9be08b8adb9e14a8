#pragma once

#include <c10/core/Allocator.h>

#include <memory>

#include "memory/memory_budget.h"

namespace torchshare {

/// A job as an owner of memory on one type of device. Any thread.
///
/// Note [Owned memory]
/// An allocator of ours stands before torch's. Where the thread belongs to a job, it reserves the bytes in the job's
/// budget, lets torch's allocator do the work, writes the reservation down in the owner's ledger, and puts its own
/// deleter in the place of torch's: so a block goes back to the budget that paid for it, whichever thread drops it.
/// Each owner has a deleter of its own, all of them the same code: whose a tensor is can be told by comparing one
/// pointer, which is how tensors that cross jobs are found. torch's pools (MemPool) could do the counting on CUDA.
/// While one is in use, though, torch 2.11 behaves for all threads as if a graph were being captured: memory that other
/// streams have used is not given back, and a full device is not answered by freeing what is cached (pytorch/pytorch
/// issues 159674, 175015). Jobs' blocks are kept apart without them, for torch reuses a block on the stream that it was
/// made for.
class MemoryOwner {
 public:
  MemoryOwner(std::shared_ptr<MemoryBudget> budget, c10::DeviceType device);
  ~MemoryOwner();
  MemoryOwner(const MemoryOwner&) = delete;  // its deleter is its own
  MemoryOwner& operator=(const MemoryOwner&) = delete;

  const std::shared_ptr<MemoryBudget>& budget() const { return budget_; }
  c10::DeviceType device() const { return device_; }
  c10::DeleterFnPtr deleter() const { return deleter_; }
  /// The budget of another owner, not gone yet, of this memory; null: there is none.
  std::shared_ptr<MemoryBudget> other_owner(const c10::DataPtr& data) const;

 private:
  const std::shared_ptr<MemoryBudget> budget_;
  const c10::DeviceType device_;
  c10::DeleterFnPtr deleter_ = nullptr;
};

/// What the calling thread allocates is `owner`'s, until the destructor. Null: nobody's. Same thread.
class MemoryScope {
 public:
  explicit MemoryScope(std::shared_ptr<MemoryOwner> owner);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;  // bound to a thread
  MemoryScope& operator=(const MemoryScope&) = delete;
};

/// Puts our allocator before torch's CPU allocator. Once per process; again does nothing.
void install_cpu_memory();

// For allocators. Any thread.

/// The calling thread's owner, where it owns memory of this type of device; else null.
const MemoryOwner* memory_owner(c10::DeviceType device);
/// It is one that `own` puts in the place of torch's.
bool is_owners(c10::DeleterFnPtr deleter);
/// What torch's allocator made for `owner`, which paid with `reservation`.
c10::DataPtr own(c10::DataPtr data, const MemoryOwner& owner, Reservation reservation);
void own(void* block, c10::DeleterFnPtr release, const MemoryOwner& owner, Reservation reservation);
/// Gives the block's bytes back to its budget, and the block to torch's allocator; false where it has no owner.
bool disown(void* block);

}  // namespace torchshare
