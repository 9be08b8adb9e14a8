#pragma once

#include <chrono>
#include <cstdint>

namespace torchshare {

/// What one who waits knows of a job that leaves its ops without a sign: since when its counter has not moved, as far
/// as it was looked at. See Note [Free exit].
struct Sighting {
  std::uint64_t activity = 0;
  std::chrono::nanoseconds since{0};

  /// Looks again; returns for how long the counter has been seen where it is.
  std::chrono::nanoseconds look(std::uint64_t now_at, std::chrono::nanoseconds now) {
    if (now_at != activity) {
      *this = {now_at, now};
    }
    return now - since;
  }
};

}  // namespace torchshare
