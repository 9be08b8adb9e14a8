#include "gate/device_waits.h"

#include <exception>

namespace torchshare {

void DeviceWaits::begin(DeviceStream& stream, const GapForecast& forecast) {
  const DeviceStream::Marker before = stream.record_marker();
  if (before == 0) {
    return;  // a graph is being captured
  }
  const DeviceStream::Marker passed = stream.passed();
  std::lock_guard lock(mutex_);
  forget_left(passed);  // where no other job looks
  waits_.push_back({.number = ++begun_, .before = before, .stream = stream.current(), .forecast = forecast});
  exist_.store(true, std::memory_order_release);
}

void DeviceWaits::end(DeviceStream& stream) noexcept {
  if (!exist_.load(std::memory_order_relaxed)) {
    return;
  }
  DeviceStream::Marker after = 0;
  try {
    after = stream.record_marker();
  } catch (const std::exception&) {
    after = 0;
  }
  std::lock_guard lock(mutex_);
  if (waits_.empty() || waits_.back().after != 0) {
    return;
  }
  if (after == 0) {
    waits_.pop_back();
  } else {
    waits_.back().after = after;
  }
}

void DeviceWaits::forget_left(DeviceStream::Marker passed) const {
  while (!waits_.empty() && waits_.front().after != 0 && waits_.front().after <= passed) {
    waits_.pop_front();
  }
}

std::optional<DeviceWait> DeviceWaits::current(const DeviceStream& stream) const {
  if (!exist_.load(std::memory_order_acquire)) {
    return std::nullopt;
  }
  const DeviceStream::Marker passed = stream.passed();
  std::lock_guard lock(mutex_);
  forget_left(passed);
  if (waits_.empty() || waits_.front().after == 0 || passed < waits_.front().before) {
    return std::nullopt;
  }
  return waits_.front();
}

}  // namespace torchshare
