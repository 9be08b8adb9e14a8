#pragma once

#include "policy/gate_policy.h"

namespace torchshare {

/// Admits every op: the device's own scheduler orders jobs (SCHED_IDLE on the CPU, stream priorities on CUDA).
class PriorityOnlyPolicy final : public GatePolicy {
 public:
  bool concerns(const Standing&, const Standing&) const override { return false; }
  bool watches_others() const override { return false; }
  Verdict decide(const Requester&, std::span<const Competitor>) const override {
    return {.admit = true, .retry_after = {}};
  }
};

}  // namespace torchshare
