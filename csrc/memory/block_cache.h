#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace torchshare {

/// Large blocks of memory; those that are freed are cached for the next ones. Not thread-safe.
///
/// Note [Block cache]
/// malloc returns a large block to the kernel when it is freed. The next one is faulted in again, page by page, and
/// zeroed, under locks that all threads of the process share: up to 8,000 faults per tensor of 32 MiB, and three
/// quarters of the step time of a job bound by memory (benchmarks/allocator.py).
/// A training step allocates what the last one allocated. So an extent, a range of free memory, stays mapped; the
/// smallest that fits is split, and neighbours are merged, so that the memory of activations serves gradients of other
/// sizes. No header precedes a block: the caller knows its size.
/// The memory in use and the cached memory together stay below the most that was in use in the last 10 to 20 seconds
/// plus an eighth (at least 32 MiB), and below a ceiling. Beyond it, the least recently freed extents are unmapped.
class BlockCache {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::size_t kSmallest = std::size_t{256} << 10;  ///< smaller blocks are left to malloc

  BlockCache() = default;
  ~BlockCache() { trim(0); }
  BlockCache(const BlockCache&) = delete;  // blocks belong to it
  BlockCache& operator=(const BlockCache&) = delete;

  /// Memory aligned to a page, with unspecified contents; null if the kernel has none left. `bytes` > 0.
  void* allocate(std::size_t bytes, Time now) noexcept;
  /// `block` is one that `allocate(bytes)` returned.
  void free(void* block, std::size_t bytes, Time now) noexcept;
  /// Unmaps the least recently freed extents until at most `bytes` are cached.
  void trim(std::size_t bytes) noexcept;
  /// Begins anew for another user: trims all and forgets former peaks. The memory in use and the cached memory together
  /// stay below `ceiling`; the memory in use alone may exceed it.
  void reset(std::size_t ceiling) noexcept;

  std::size_t in_use() const { return in_use_; }
  std::size_t cached() const { return cached_; }

 private:
  using Address = std::uintptr_t;
  struct Extent {
    std::size_t bytes;
    std::uint64_t freed;  // sequence number
  };
  using Extents = std::map<Address, Extent>;

  Address take(std::size_t bytes) noexcept;
  Address map(std::size_t bytes) noexcept;
  void insert(Address begin, Extent extent) noexcept;
  void erase(Extents::iterator extent);
  void unmap_oldest(std::size_t bytes) noexcept;
  void forget_old_peaks(Time now);
  std::size_t allowed() const;

  Extents extents_;
  std::set<std::pair<std::size_t, Address>> by_size_;
  std::size_t in_use_ = 0;
  std::size_t cached_ = 0;
  std::size_t peak_ = 0;  // of `in_use_`, in the current window of time
  std::size_t former_peak_ = 0;
  std::size_t ceiling_ = SIZE_MAX;
  std::uint64_t frees_ = 0;
  Time window_{};
};

}  // namespace torchshare
