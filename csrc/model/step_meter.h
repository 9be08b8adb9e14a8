#pragma once

#include <cstdint>

namespace torchshare {

/// Running mean and variance of measured times (Welford's method). In seconds.
class StepMeter {
 public:
  void add(double seconds);

  std::uint64_t count() const { return count_; }
  double mean() const { return mean_; }
  double total() const { return mean_ * static_cast<double>(count_); }
  /// Standard error of the mean / mean; infinite for fewer than two values.
  double relative_error() const;

 private:
  std::uint64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // sum of squared distances from the mean
};

}  // namespace torchshare
