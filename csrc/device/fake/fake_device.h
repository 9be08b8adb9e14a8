#pragma once

#include <map>
#include <thread>

#include "device/device.h"

namespace torchshare {

/// A clock that stands still until it is told to move; waits look at it every millisecond of real time. Any thread.
class ManualClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override;
  void advance(std::chrono::nanoseconds by);
  void wait_until(std::condition_variable& wake, std::unique_lock<std::mutex>& lock,
                  std::chrono::nanoseconds deadline) override;

 private:
  mutable std::mutex mutex_;  // guards now_
  std::chrono::nanoseconds now_{0};
};

/// A device for tests: virtual time, and priorities that are only written down. Any thread.
class FakeDevice final : public Device {
 public:
  std::string_view name() const override { return "fake"; }
  ManualClock& clock() override { return clock_; }
  std::unique_ptr<PriorityScope> enter_priority(Priority priority) override;
  /// The priorities held now, by thread.
  std::map<std::thread::id, Priority> held() const;

 private:
  class Scope;
  ManualClock clock_;
  mutable std::mutex mutex_;  // guards held_
  std::map<std::thread::id, Priority> held_;
};

}  // namespace torchshare
