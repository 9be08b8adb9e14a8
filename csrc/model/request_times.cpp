#include "model/request_times.h"

namespace torchshare {

Seconds TimeSpread::quantile(double share) const {
  const auto time = histogram_.quantile(share, 1);
  return time ? to_seconds(*time) : 0;
}

bool RequestTimes::answered(std::chrono::nanoseconds arrival, std::chrono::nanoseconds begin,
                            std::chrono::nanoseconds end) {
  const bool is_late = to_seconds(end - arrival) > limit_;
  late_ += is_late ? 1 : 0;
  latency_.add(end - arrival);
  service_.add(end - begin);
  queued_.add(begin - arrival);
  return is_late;
}

}  // namespace torchshare
