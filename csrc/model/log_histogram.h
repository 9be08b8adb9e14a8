#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>

namespace torchshare {

/// A histogram of times: four buckets per doubling, from 1 ns on.
class LogHistogram {
 public:
  static constexpr std::uint64_t kEnough = 20;

  void add(std::chrono::nanoseconds time);
  /// The upper edge of the bucket below which `share` of the times lie; empty if there are fewer than kEnough times.
  std::optional<std::chrono::nanoseconds> quantile(double share) const;

 private:
  std::array<std::uint32_t, 160> buckets_{};
  std::uint64_t count_ = 0;
};

}  // namespace torchshare
