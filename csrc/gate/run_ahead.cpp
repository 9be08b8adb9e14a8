#include "gate/run_ahead.h"

namespace torchshare {

void RunAhead::launched(std::chrono::nanoseconds expected) {
  if (const DeviceStream::Marker marker = stream_->record_marker(); marker != 0) {
    launches_.push_back({marker, expected});
    sum_ += expected;
  }
}

std::chrono::nanoseconds RunAhead::outstanding() {
  if (!launches_.empty()) {
    const DeviceStream::Marker passed = stream_->passed();
    while (!launches_.empty() && launches_.front().marker <= passed) {
      sum_ -= launches_.front().expected;
      launches_.pop_front();
    }
  }
  return sum_;
}

}  // namespace torchshare
