#include "model/step_meter.h"

#include <cmath>
#include <limits>

namespace torchshare {

void StepMeter::add(double seconds) {
  ++count_;
  const double distance = seconds - mean_;
  mean_ += distance / static_cast<double>(count_);
  squares_ += distance * (seconds - mean_);
}

double StepMeter::relative_error() const {
  if (count_ < 2 || mean_ <= 0) {
    return std::numeric_limits<double>::infinity();
  }
  const auto n = static_cast<double>(count_);
  return std::sqrt(squares_ / (n - 1) / n) / mean_;
}

}  // namespace torchshare
