#pragma once

#include <chrono>
#include <deque>
#include <memory>

#include "device/device.h"

namespace torchshare {

/// How far a job's host is ahead of its device, in predicted time. The job's own thread.
class RunAhead {
 public:
  explicit RunAhead(std::shared_ptr<DeviceStream> stream) : stream_(std::move(stream)) {}

  /// An op was launched that is expected to take so long.
  void launched(std::chrono::nanoseconds expected);
  /// The sum over what was launched and has not run.
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
