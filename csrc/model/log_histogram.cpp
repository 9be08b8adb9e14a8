#include "model/log_histogram.h"

#include <algorithm>
#include <cmath>

namespace torchshare {

constexpr double kPerDoubling = 4;

void LogHistogram::add(std::chrono::nanoseconds time) {
  const double size = kPerDoubling * std::log2(static_cast<double>(std::max<std::int64_t>(time.count(), 1)));
  ++buckets_[std::min(static_cast<std::size_t>(size), buckets_.size() - 1)];
  ++count_;
}

std::optional<std::chrono::nanoseconds> LogHistogram::quantile(double share) const {
  if (count_ < kEnough) {
    return std::nullopt;
  }
  std::uint64_t below = 0;
  std::size_t bucket = 0;
  while (static_cast<double>(below += buckets_[bucket]) < share * static_cast<double>(count_)) {
    ++bucket;
  }
  return std::chrono::nanoseconds(std::llround(std::exp2(static_cast<double>(bucket + 1) / kPerDoubling)));
}

}  // namespace torchshare
