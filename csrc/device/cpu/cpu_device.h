#pragma once

#include "device/device.h"

namespace torchshare {

/// The steady clock of the machine: CLOCK_MONOTONIC, as Python's time.monotonic().
class SteadyClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  void wait_until(std::condition_variable& wake, std::unique_lock<std::mutex>& lock,
                  std::chrono::nanoseconds deadline) override;
};

/// Real jobs on the CPU. The primary keeps the scheduling class it has; every lower level becomes SCHED_IDLE,
/// which to the CPU is what stream priority is to the GPU: it runs on what the others leave.
class CpuDevice final : public Device {
 public:
  std::string_view name() const override { return "cpu"; }
  Clock& clock() override { return clock_; }
  std::unique_ptr<DeviceScope> enter(const Seat& seat) override;

 private:
  SteadyClock clock_;
};

}  // namespace torchshare
