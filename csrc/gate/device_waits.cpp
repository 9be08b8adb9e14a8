#include "gate/device_waits.h"

#include <exception>

namespace torchshare {

namespace {

/// 0: a graph is being captured, or the device has failed.
DeviceStream::Marker marker_on(DeviceStream& stream) noexcept {
  try {
    return stream.record_marker();
  } catch (const std::exception&) {
    return 0;
  }
}

}  // namespace

void DeviceWaits::begin(DeviceStream& stream, const GapForecast& forecast) noexcept {
  const DeviceStream::Marker before = marker_on(stream);
  if (before == 0) {
    return;
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
  const DeviceStream::Marker after = marker_on(stream);
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
