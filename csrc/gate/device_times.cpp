#include "gate/device_times.h"

namespace torchshare {

void DeviceTimes::begin(bool timed) {
  begin_ = timed ? stream_->stamp() : 0;
  if (begin_ == 0) {
    former_ = {};
  }
}

void DeviceTimes::end(std::uint64_t context) {
  if (begin_ == 0) {
    return;
  }
  const DeviceStream::Stamp end = stream_->stamp();
  const Pair op{context, begin_, end};
  if (end != 0) {
    latest_ = end;
    pending_.push_back({op, former_});
  }
  former_ = end != 0 ? op : Pair{};
}

std::optional<DeviceTimes::Timed> DeviceTimes::next() {
  while (!pending_.empty()) {
    const auto [op, former] = pending_.front();
    const DeviceStream::Stamp oldest = former.end != 0 ? former.end : op.begin;
    if (latest_ - oldest < stream_->stamps()) {
      const auto duration = stream_->between(op.begin, op.end);
      if (!duration) {
        return std::nullopt;
      }
      pending_.pop_front();
      return Timed{op.context, *duration, former.context,
                   former.end != 0 ? stream_->between(former.end, op.begin) : std::nullopt};
    }
    pending_.pop_front();  // launched so far ahead that the stamps were reused
  }
  return std::nullopt;
}

}  // namespace torchshare
