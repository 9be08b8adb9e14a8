#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>

namespace torchshare {

/// A histogram of times: `PerDoubling` buckets per doubling, from 1 ns to 1,100 s.
template <int PerDoubling = 4>
class LogHistogram {
 public:
  static constexpr std::uint64_t kEnough = 20;

  void add(std::chrono::nanoseconds time) {
    ++buckets_[bucket_of(time)];
    ++count_;
  }
  std::uint64_t count() const { return count_; }
  /// The upper edge of the bucket below which `share` of the times lie; empty if there are fewer than `enough` times.
  std::optional<std::chrono::nanoseconds> quantile(double share, std::uint64_t enough = kEnough) const {
    if (count_ < enough || count_ == 0) {
      return std::nullopt;
    }
    std::uint64_t below = 0;
    std::size_t bucket = 0;
    while (static_cast<double>(below += buckets_[bucket]) < share * static_cast<double>(count_)) {
      ++bucket;
    }
    return std::chrono::nanoseconds(std::llround(std::exp2(static_cast<double>(bucket + 1) / PerDoubling)));
  }
  /// How many times are at most `time`, or in its bucket.
  std::uint64_t at_most(std::chrono::nanoseconds time) const {
    const auto end = buckets_.begin() + static_cast<std::ptrdiff_t>(bucket_of(time)) + 1;
    return std::accumulate(buckets_.begin(), end, std::uint64_t{0});
  }

 private:
  static constexpr std::size_t kBuckets = 40 * PerDoubling;

  static std::size_t bucket_of(std::chrono::nanoseconds time) {
    const double size = PerDoubling * std::log2(static_cast<double>(std::max<std::int64_t>(time.count(), 1)));
    return std::min(static_cast<std::size_t>(size), kBuckets - 1);
  }

  std::array<std::uint32_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
};

}  // namespace torchshare
