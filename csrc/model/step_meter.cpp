#include "model/step_meter.h"

#include <cmath>
#include <limits>

namespace torchshare {

void StepMeter::add(Seconds time) {
  ++count_;
  const double distance = time - mean_;
  mean_ += distance / static_cast<double>(count_);
  squares_ += distance * (time - mean_);
}

void StepMeter::forget_half() {
  count_ /= 2;
  squares_ /= 2;
}

double StepMeter::relative_error() const {
  if (count_ < 2 || mean_ <= 0) {
    return std::numeric_limits<double>::infinity();
  }
  const auto n = static_cast<double>(count_);
  return std::sqrt(squares_ / (n - 1) / n) / mean_;
}

}  // namespace torchshare
