#include "device/event_count.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "model/time.h"

namespace torchshare {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4,
              "the kernel reads the counter as a 32-bit word");

// A waiter counts itself before the kernel compares the value; a notifier changes the value before it reads the count.
// One of the two must see the other, so all of it is sequentially consistent.
void EventCount::notify_all() {
  value_.fetch_add(1, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) > 0) {
    syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
}

void EventCount::wait(std::uint32_t seen, std::chrono::nanoseconds deadline) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const timespec until{.tv_sec = deadline.count() / kSecond, .tv_nsec = deadline.count() % kSecond};
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, which is std::chrono::steady_clock.
  syscall(SYS_futex, &value_, FUTEX_WAIT_BITSET_PRIVATE, seen, deadline == kNever ? nullptr : &until, nullptr,
          FUTEX_BITSET_MATCH_ANY);
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace torchshare
