#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>

#include "device/device.h"

namespace torchshare {

/// Times ops on a device that runs behind the host: a stamp before and one after, read when the device has come to
/// them. The job's own thread.
class DeviceTimes {
 public:
  /// An op in the place `context`; `gap` is what the stream had nothing to do before it, where the op before it, in
  /// `before`, was timed as well.
  struct Timed {
    std::uint64_t context;
    std::chrono::nanoseconds duration;
    std::uint64_t before;
    std::optional<std::chrono::nanoseconds> gap;
  };

  explicit DeviceTimes(std::shared_ptr<DeviceStream> stream) : stream_(std::move(stream)) {}

  /// Around an op.
  void begin(bool timed);
  void end(std::uint64_t context);
  /// The next op, in order, that the device has done.
  std::optional<Timed> next();

 private:
  struct Pair {
    std::uint64_t context;
    DeviceStream::Stamp begin;
    DeviceStream::Stamp end;
  };
  struct Pending {
    Pair op;
    Pair former;  // its `end` is 0 where it was not timed
  };

  const std::shared_ptr<DeviceStream> stream_;
  std::deque<Pending> pending_;
  Pair former_{};
  DeviceStream::Stamp begin_ = 0;
  DeviceStream::Stamp latest_ = 0;
};

}  // namespace torchshare
