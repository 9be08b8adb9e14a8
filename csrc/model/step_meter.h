#pragma once

#include <cstdint>

#include "model/time.h"

namespace torchshare {

/// Running mean and variance of measured times (Welford's method).
class StepMeter {
 public:
  void add(Seconds time);
  /// Halves the weight of the values so far.
  void forget_half();

  std::uint64_t count() const { return count_; }
  Seconds mean() const { return mean_; }
  Seconds total() const { return mean_ * static_cast<double>(count_); }
  /// Standard error of the mean / mean; infinite for fewer than two values.
  double relative_error() const;

 private:
  std::uint64_t count_ = 0;
  Seconds mean_ = 0;
  double squares_ = 0;  // sum of squared distances from the mean
};

}  // namespace torchshare
