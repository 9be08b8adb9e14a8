#include "model/pace.h"

#include <algorithm>

namespace torchshare {

using std::chrono::nanoseconds;

nanoseconds Pace::open_per_cycle() const {
  return nanoseconds(static_cast<std::int64_t>(share * static_cast<double>(cycle.count())));
}

nanoseconds Pace::wait(nanoseconds now) const {
  const nanoseconds since = (now - origin) % cycle;
  return share >= 1 || since < open_per_cycle() ? nanoseconds(0) : cycle - since;
}

/// Time open since the origin.
nanoseconds Pace::open_until(nanoseconds when) const {
  const nanoseconds since = when - origin;
  return (since / cycle) * open_per_cycle() + std::min(since % cycle, open_per_cycle());
}

nanoseconds Pace::open_within(nanoseconds begin, nanoseconds end) const {
  return share >= 1 ? end - begin : open_until(end) - open_until(begin);
}

}  // namespace torchshare
