#pragma once

#include <chrono>
#include <cstdint>

namespace torchshare {

/// Measures how long a job has been quiet, from observations of its counter: jobs leave ops without a notification. See
/// Note [Free exit].
struct QuietTimer {
  std::uint64_t activity = 0;
  std::chrono::nanoseconds since{0};

  /// Observes the counter; returns for how long it has been unchanged.
  std::chrono::nanoseconds look(std::uint64_t activity_now, std::chrono::nanoseconds now) {
    if (activity_now != activity) {
      *this = {activity_now, now};
    }
    return now - since;
  }
};

}  // namespace torchshare
