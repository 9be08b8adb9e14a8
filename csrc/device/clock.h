#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace torchshare {

inline constexpr std::chrono::nanoseconds kNever = std::chrono::nanoseconds::max();

/// Monotonic time, and the one way to wait for it. Any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::chrono::nanoseconds now() const = 0;
  /// Blocks until `wake` is notified or `deadline` comes; may return early, so call it in a loop over a predicate.
  virtual void wait_until(std::condition_variable& wake, std::unique_lock<std::mutex>& lock,
                          std::chrono::nanoseconds deadline) = 0;
};

}  // namespace torchshare
