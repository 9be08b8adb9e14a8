#include "model/pace.h"

#include <algorithm>

namespace torchshare {

using std::chrono::nanoseconds;

nanoseconds Pace::open_per_cycle() const {
  return nanoseconds(static_cast<std::int64_t>(share * static_cast<double>(cycle.count())));
}

nanoseconds Pace::wait(nanoseconds now) const {
  const nanoseconds since = (now - origin) % cycle;
  if (share >= 1 || now >= until || since < open_per_cycle()) {
    return nanoseconds(0);
  }
  return std::min(cycle - since, until - now);
}

nanoseconds Pace::open_for(nanoseconds now) const {
  return share >= 1 || now >= until ? nanoseconds::max()
                                    : std::max(open_per_cycle() - (now - origin) % cycle, nanoseconds(0));
}

/// Time open since the origin.
nanoseconds Pace::open_until(nanoseconds when) const {
  const nanoseconds since = when - origin;
  return (since / cycle) * open_per_cycle() + std::min(since % cycle, open_per_cycle());
}

nanoseconds Pace::open_within(nanoseconds begin, nanoseconds end) const {
  if (share >= 1) {
    return end - begin;
  }
  const nanoseconds paced = std::clamp(until, begin, end);
  return open_until(paced) - open_until(begin) + (end - paced);
}

}  // namespace torchshare
