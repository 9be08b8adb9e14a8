#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace torchshare {

/// Lets threads wait for a change that others make without a lock: read `value`, check the predicate, then wait for
/// `value` to change. A change made before `notify_all` is never missed. Any thread.
/// Without waiters, notifying increments one counter; it takes no lock, so a notifier never waits for a waiter.
class EventCount {
 public:
  EventCount() = default;
  EventCount(const EventCount&) = delete;  // threads wait at its address
  EventCount& operator=(const EventCount&) = delete;

  std::uint32_t value() const { return value_.load(std::memory_order_seq_cst); }
  void notify_all();
  /// Returns once `value` differs from `seen`, or the steady clock reaches `deadline` (kNever: no deadline). May return
  /// early.
  void wait(std::uint32_t seen, std::chrono::nanoseconds deadline);

 private:
  std::atomic<std::uint32_t> value_{0};
  std::atomic<std::uint32_t> waiters_{0};
};

}  // namespace torchshare
