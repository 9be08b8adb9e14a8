#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "device/device.h"
#include "policy/gate_policy.h"

namespace torchshare {

/// A wait of a job's stream, on the device, for something that is not the job's own work, such as other ranks.
struct DeviceWait {
  std::uint64_t number = 0;
  DeviceStream::Marker before = 0;  ///< behind what was launched before the wait
  DeviceStream::Marker after = 0;   ///< behind the wait; 0: the thread has not launched it yet
  std::uintptr_t stream = 0;        ///< that waits; see DeviceStream::current
  GapForecast forecast = {};        ///< of its length
};

/// The waits of one job. `begin` and `end` on the job's own thread; `current` on any.
///
/// Note [Waits on the device]
/// NCCL's `wait` returns at once: it lets the stream wait for the collective. What the job launches then is not done
/// until the collective is, though the job's own kernels leave the device idle. A marker before the wait and one behind
/// it tell when the device is there. A wait costs the job these two markers. What is launched between them counts as
/// part of the wait: DistributedDataParallel's copies of its buckets into gradients (`gradient_as_bucket_view` has
/// none).
class DeviceWaits {
 public:
  // They do not throw: the job hears of a device that has failed at its next call.
  void begin(DeviceStream& stream, const GapForecast& forecast) noexcept;
  void end(DeviceStream& stream) noexcept;
  /// The wait that the device has reached and not left.
  std::optional<DeviceWait> current(const DeviceStream& stream) const;

 private:
  void forget_left(DeviceStream::Marker passed) const;

  std::atomic<bool> exist_{false};  // spares other jobs the lock
  mutable std::mutex mutex_;        // guards the fields below
  std::uint64_t begun_ = 0;
  mutable std::deque<DeviceWait> waits_;  // that the device had not left at the last look; in order
};

}  // namespace torchshare
