#pragma once

#include <chrono>
#include <cstdint>

namespace torchshare {

/// How long a job has been quiet, for jobs that leave their ops without notifying anybody: since when its counter has
/// not moved, as far as it was looked at. See Note [Free exit].
struct QuietTimer {
  std::uint64_t activity = 0;
  std::chrono::nanoseconds since{0};

  /// Looks again; returns for how long the counter has been seen unchanged.
  std::chrono::nanoseconds look(std::uint64_t activity_now, std::chrono::nanoseconds now) {
    if (activity_now != activity) {
      *this = {activity_now, now};
    }
    return now - since;
  }
};

}  // namespace torchshare
