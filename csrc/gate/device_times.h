#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>

#include "device/device.h"

namespace torchshare {

/// Times ops on an asynchronous device: one stamp before and one after each, read once the device has reached them. The
/// job's own thread.
class DeviceTimes {
 public:
  /// A timed op at the place `context`; `gap` is the idle time of the stream before it, if the previous op, at
  /// `before`, was timed as well.
  struct Timed {
    std::uint64_t context;
    std::chrono::nanoseconds duration;
    std::uint64_t before;
    std::optional<std::chrono::nanoseconds> gap;
  };

  explicit DeviceTimes(std::shared_ptr<DeviceStream> stream) : stream_(std::move(stream)) {}

  /// Called around an op.
  void begin(bool timed);
  void end(std::uint64_t context);
  /// The next op, in launch order, that the device has finished.
  std::optional<Timed> next();

 private:
  struct Pair {
    std::uint64_t context;
    DeviceStream::Stamp begin;
    DeviceStream::Stamp end;
  };
  struct Pending {
    Pair op;
    Pair former;  // its `end` is 0 if it was not timed
  };

  const std::shared_ptr<DeviceStream> stream_;
  std::deque<Pending> pending_;
  Pair former_{};
  DeviceStream::Stamp begin_ = 0;
  DeviceStream::Stamp latest_ = 0;
};

}  // namespace torchshare
