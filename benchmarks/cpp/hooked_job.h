#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "device/cpu/cpu_device.h"
#include "gate/gate.h"
#include "hook/op_hook.h"

namespace torchshare {

/// What runs at each op: nothing; the hook; the hook, which watches it like an op of a primary with known ops; the
/// hook, which times it.
enum Level { kOff, kHooked, kWatched, kTimed };

class NeverStopped final : public OpContext {
 public:
  explicit NeverStopped(std::int64_t level) : OpContext(Priority::kPrimary, at::detail::createCPUGenerator(0)) {
    install_op_hook();
    if (level >= kWatched) {
      watch_ = std::make_unique<OpWatch>(
          slot_, gate_, clock_, WatchOptions{.record = level == kTimed, .shortest_gap = std::chrono::milliseconds(1)});
    }
  }
  void handle_interrupts() override {}

 private:
  SteadyClock clock_;
  Gate gate_{make_gate_policy("best_fit", {}), clock_};
};

}  // namespace torchshare
