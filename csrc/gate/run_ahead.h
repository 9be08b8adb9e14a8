#pragma once

#include <chrono>
#include <deque>
#include <memory>

#include "device/device.h"

namespace torchshare {

/// The predicted time of the work that a job has launched and the device has not finished. The job's own thread.
class RunAhead {
 public:
  explicit RunAhead(std::shared_ptr<DeviceStream> stream) : stream_(std::move(stream)) {}

  /// Called when an op of that expected duration was launched.
  void launched(std::chrono::nanoseconds expected);
  /// The expected duration of all launched work that has not finished.
  std::chrono::nanoseconds outstanding();

 private:
  struct Launch {
    DeviceStream::Marker marker;
    std::chrono::nanoseconds expected;
  };

  const std::shared_ptr<DeviceStream> stream_;
  std::deque<Launch> launches_;
  std::chrono::nanoseconds sum_{0};
};

}  // namespace torchshare
