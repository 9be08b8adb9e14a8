#include "model/op_profile.h"

#include <algorithm>
#include <cmath>

namespace torchshare {

void OpTime::add(double value) {
  constexpr double kLeastWeight = 1.0 / 16;
  constexpr double kFarOut = 8;          // spreads
  constexpr double kLeastSpread = 0.02;  // of the mean, for the judgement of what is far out
  if (known()) {
    value = std::min(value, mean + kFarOut * std::max(spread, kLeastSpread * mean));
  }
  ++count;
  const double weight = std::max(1.0 / count, kLeastWeight);
  spread += weight * (std::abs(value - mean) * (count > 1) - spread);
  mean += weight * (value - mean);
}

}  // namespace torchshare
