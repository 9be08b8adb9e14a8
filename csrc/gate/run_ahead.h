#pragma once

#include <chrono>
#include <deque>
#include <memory>

#include "device/device.h"

namespace torchshare {

/// How far a job's host thread is ahead of the device, in predicted time. The job's own thread.
class RunAhead {
 public:
  explicit RunAhead(std::shared_ptr<DeviceStream> stream) : stream_(std::move(stream)) {}

  /// An op of that expected duration was launched.
  void launched(std::chrono::nanoseconds expected);
  /// The expected duration of all that was launched and has not finished.
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
