#pragma once

#include "policy/gate_policy.h"

namespace torchshare {

/// FIKIT's BestPrioFit (arXiv 2311.10359, algorithm 2): a higher job's gap is filled with ops that are expected to end
/// before it returns, from the highest waiting priority to the lowest, the longest that fits first.
///
/// Note [Gaps and their ends]
/// A gap is trusted up to its mean less its spread. When the job has not come back two spreads after the mean, or a
/// grace if that is longer, the forecast was wrong, and what is left is what StrictPolicy goes by: the job's word that
/// it waits for input, or the grace. A job that waits for input irregularly (requests) is taken at its word from the
/// beginning: the mean of such a gap says nothing about its end.
class BestFitPolicy final : public GatePolicy {
 public:
  /// Throws std::invalid_argument when `grace` is negative or above one second.
  explicit BestFitPolicy(std::chrono::nanoseconds grace);
  bool concerns(Priority mine, Priority other) const override { return outranks(other, mine); }
  bool forecasts() const override { return true; }
  Verdict decide(const Requester& requester, std::span<const Competitor> competitors) const override;

 private:
  /// For how long the competitor will stay outside, and when to look again where that is not enough.
  struct Room {
    std::chrono::nanoseconds left;
    std::chrono::nanoseconds look_again;
  };
  Room room(const Competitor& competitor) const;

  std::chrono::nanoseconds grace_;
};

}  // namespace torchshare
