#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

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
  std::int64_t held() const;
  std::int64_t peak() const;

  void allocated(const void* block, std::int64_t bytes);
  /// Counts only for blocks that this meter saw allocated: a job's thread may well collect another one's garbage.
  void released(const void* block);

 private:
  mutable std::mutex mutex_;  // guards every field below
  std::unordered_map<const void*, std::int64_t> blocks_;
  std::int64_t held_ = 0;
  std::int64_t peak_ = 0;
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
