#include "model/request_times.h"

namespace torchshare {

Seconds TimeSpread::quantile(double share) const {
  const auto time = histogram_.quantile(share, 1);
  return time ? to_seconds(*time) : 0;
}

bool RequestTimes::answered(std::chrono::nanoseconds arrival, std::chrono::nanoseconds begin,
                            std::chrono::nanoseconds end) {
  latency_.add(end - arrival);
  service_.add(end - begin);
  queued_.add(begin - arrival);
  return count_if_late(end - arrival);
}

bool RequestTimes::given_up(std::chrono::nanoseconds arrival, std::chrono::nanoseconds end) {
  ++given_up_;
  return count_if_late(end - arrival);
}

bool RequestTimes::count_if_late(std::chrono::nanoseconds latency) {
  const bool is_late = to_seconds(latency) > limit_;
  late_ += is_late ? 1 : 0;
  return is_late;
}

}  // namespace torchshare
