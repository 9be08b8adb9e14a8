#pragma once

#include "policy/gate_policy.h"

namespace torchshare {

/// Strict priority: an op enters when no higher job is inside one, nor was within the grace period.
/// The grace does not apply to a job that reports that it waits for input. A job that answers a request keeps lower
/// ones out until the answer, unless it runs no op for `kLongestRetry`: then it waits for something else.
class StrictPolicy final : public GatePolicy {
 public:
  /// Throws std::invalid_argument if `grace` is negative or above one second.
  explicit StrictPolicy(std::chrono::nanoseconds grace);
  bool concerns(const Standing& mine, const Standing& other) const override {
    return outranks(other.priority, mine.priority);
  }
  Verdict decide(const Requester& requester, std::span<const Competitor> competitors) const override;

 private:
  std::chrono::nanoseconds grace_;
};

}  // namespace torchshare
