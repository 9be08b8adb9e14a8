#pragma once

#include "policy/gate_policy.h"

namespace torchshare {

/// FIKIT's BestPrioFit (arXiv 2311.10359, algorithm 2): a higher job's gap is filled with ops that are expected to end
/// before it returns, from the highest waiting priority to the lowest, the longest that fits first.
///
/// Note [Gaps and their ends]
/// A forecast gap is used up to its mean minus its spread. If the job has not returned two spreads after the mean, or
/// one grace if that is longer, the forecast was wrong; then StrictPolicy's rule holds: the job reported that it waits
/// for input, or the grace has passed. For a job that waits for input irregularly (requests) that rule holds from the
/// start, because the mean of such gaps does not predict their end. An op whose own duration is not known yet enters
/// any gap once it has waited for `kLongestRetry`: otherwise no op of a job beside a regular one would ever be
/// measured.
class BestFitPolicy final : public GatePolicy {
 public:
  /// Throws std::invalid_argument if `grace` is negative or above one second.
  explicit BestFitPolicy(std::chrono::nanoseconds grace);
  bool concerns(const Standing& mine, const Standing& other) const override {
    return outranks(other.priority, mine.priority);
  }
  bool forecasts() const override { return true; }
  Verdict decide(const Requester& requester, std::span<const Competitor> competitors) const override;

 private:
  /// How long the competitor will stay outside, and when to ask again if that is too short.
  struct Room {
    std::chrono::nanoseconds left;
    std::chrono::nanoseconds look_again;
  };
  Room room(const Competitor& competitor) const;

  std::chrono::nanoseconds grace_;
};

}  // namespace torchshare
