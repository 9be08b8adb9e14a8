#include "gate/run_ahead.h"

namespace torchshare {

void RunAhead::launched(std::chrono::nanoseconds expected) {
  if (const DeviceStream::Mark mark = stream_->mark(); mark != 0) {
    launches_.push_back({mark, expected});
    sum_ += expected;
  }
}

std::chrono::nanoseconds RunAhead::outstanding() {
  if (!launches_.empty()) {
    const DeviceStream::Mark passed = stream_->passed();
    while (!launches_.empty() && launches_.front().mark <= passed) {
      sum_ -= launches_.front().expected;
      launches_.pop_front();
    }
  }
  return sum_;
}

}  // namespace torchshare
