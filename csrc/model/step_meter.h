#pragma once

#include <cstdint>

namespace torchshare {

/// Mean and spread of measured times, one by one (Welford's method). In seconds.
class StepMeter {
 public:
  void add(double seconds);

  std::uint64_t count() const { return count_; }
  double mean() const { return mean_; }
  double total() const { return mean_ * static_cast<double>(count_); }
  /// Standard error of the mean / the mean; infinite below two values.
  double relative_error() const;

 private:
  std::uint64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // sum of squared distances from the mean
};

}  // namespace torchshare
