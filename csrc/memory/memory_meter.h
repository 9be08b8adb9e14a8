#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace torchshare {

/// How many bytes of tensors the threads under its scopes hold now, and held at most. Any thread reads it.
///
/// Note [Counting memory]
/// torch reports each allocation and release of its CPU allocator to the thread's profiler state, where there is one
/// that asks for memory. The meter poses as such a state, disabled in all else. A torch.profiler inside refuses to
/// start, and each allocation costs a lock, so a job is metered only where it is asked for.
/// Scratch memory of libraries (oneDNN) does not pass the allocator and is not counted.
class MemoryMeter {
 public:
  std::int64_t held() const { return held_.load(std::memory_order_relaxed); }
  std::int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  /// Adds what was allocated, or takes away what was released (negative).
  void add(std::int64_t bytes);

 private:
  std::atomic<std::int64_t> held_{0};
  std::atomic<std::int64_t> peak_{0};
};

/// Counts what the calling thread allocates and releases, until the destructor. Same thread.
class MemoryScope {
 public:
  /// Null: counts nothing.
  explicit MemoryScope(std::shared_ptr<MemoryMeter> meter);

 private:
  const c10::DebugInfoGuard guard_;
};

}  // namespace torchshare
