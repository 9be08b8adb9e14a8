#pragma once

#include <chrono>

#include "device/event_count.h"
#include "model/time.h"

namespace torchshare {

/// Monotonic time, and waiting for it. Any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::chrono::nanoseconds now() const = 0;
  /// Blocks until `wake` is notified after `seen` was read from it, or until `deadline`. May return early: call it in a
  /// loop over a predicate.
  virtual void wait(EventCount& wake, std::uint32_t seen, std::chrono::nanoseconds deadline) = 0;
};

}  // namespace torchshare
