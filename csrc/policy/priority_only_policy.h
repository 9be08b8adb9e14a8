#pragma once

#include "policy/gate_policy.h"

namespace torchshare {

/// Lets every op enter: the device's own scheduler keeps the order (SCHED_IDLE on the CPU, stream priority on CUDA).
class PriorityOnlyPolicy final : public GatePolicy {
 public:
  bool concerns(Priority, Priority) const override { return false; }
  Verdict decide(const Requester&, std::span<const Competitor>) const override {
    return {.admit = true, .retry_after = {}};
  }
};

}  // namespace torchshare
