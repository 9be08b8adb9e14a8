#pragma once

#include "device/device.h"

namespace torchshare {

/// The steady clock of the machine: CLOCK_MONOTONIC, as Python's time.monotonic().
class SteadyClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  void wait(EventCount& wake, std::uint32_t seen, std::chrono::nanoseconds deadline) override {
    wake.wait(seen, deadline);
  }
};

/// The CPU. The primary's thread keeps its priority; the threads of lower jobs get a LowPriority.
class CpuDevice final : public Device {
 public:
  CpuDevice();
  std::string_view name() const override { return "cpu"; }
  Clock& clock() override { return clock_; }
  std::unique_ptr<ThreadPriority> thread_priority(Priority priority, DevicePriority how) override;
  std::unique_ptr<ThreadPriority> lent_thread_priority(Priority priority, DevicePriority how) override;
  std::unique_ptr<DeviceScope> enter(const DeviceRequest&) override { return std::make_unique<DeviceScope>(); }

 private:
  SteadyClock clock_;
};

}  // namespace torchshare
