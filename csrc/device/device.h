#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "device/clock.h"
#include "device/thread_priority.h"
#include "memory/owned_memory.h"
#include "torchshare/device.h"
#include "torchshare/values.h"

namespace torchshare {

/// A job's own queue on a device that runs behind the host. Any thread, unless it says otherwise.
class DeviceStream {
 public:
  using Marker = std::uint64_t;
  using Stamp = std::uint64_t;

  virtual ~DeviceStream() = default;
  /// Puts a marker behind everything launched so far, without waiting. Marks grow. 0: not now, a graph is being
  /// captured.
  virtual Marker record_marker() = 0;
  /// The latest marker that the device has come to. Reads a word.
  virtual Marker passed() const = 0;

  // The job's own thread.
  /// Puts a time stamp behind everything launched so far; 0 as above.
  virtual Stamp stamp() = 0;
  /// Device time between two stamps, of which `to` is the later; nothing while the device has not come to it, while a
  /// graph is being captured, or when one is so old that it was used again.
  virtual std::optional<std::chrono::nanoseconds> between(Stamp from, Stamp to) = 0;
  /// How many stamps there are at once.
  virtual std::size_t stamps() const = 0;
  /// Waits for everything launched so far, on this stream and on others of the job. Throws what went wrong there.
  virtual void synchronize() = 0;
};

/// Work that was captured from a job's stream once, to be launched as one. The job's own thread.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void begin_capture() = 0;
  /// Throws what made the capture fail; the graph is then of no use.
  virtual void end_capture() = 0;
  virtual void launch() = 0;
};

/// What a device is to know of a job.
struct DeviceRequest {
  Priority priority = Priority::kSecondary;
  std::uint64_t seed = 0;       ///< of the job's random generator on the device
  std::optional<int> sms = {};  ///< streaming multiprocessors that its work may use
};

/// What a job's thread holds of a device; the destructor gives it back. Same thread as its maker, but for `stream`.
class DeviceScope {
 public:
  virtual ~DeviceScope() = default;
  /// Null where the device runs with the host.
  virtual std::shared_ptr<DeviceStream> stream() { return nullptr; }
  /// The job's random generator on the device; undefined where that is the host's.
  virtual at::Generator generator() { return {}; }
  /// Streaming multiprocessors that the job really has; nothing where they are not divided.
  virtual std::optional<int> sms() const { return std::nullopt; }
  /// Null where the device has no graphs.
  virtual std::unique_ptr<DeviceGraph> make_graph() { return nullptr; }
  /// Another stream like the job's own, for as long as the job runs: the device's handle, or 0 where there is none.
  virtual std::uintptr_t open_stream() { return 0; }
};

/// The seam between the runtime and a machine. Any thread.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual Clock& clock() = 0;
  /// Work is launched and runs later, on streams.
  virtual bool is_asynchronous() const { return false; }
  /// Whose memory is counted.
  virtual c10::DeviceType memory_type() const { return c10::DeviceType::CPU; }
  /// Makes sure that memory of this device is counted where it has an owner.
  virtual void install_memory() { install_cpu_memory(); }
  /// For the thread of a job at that level.
  virtual std::unique_ptr<ThreadPriority> thread_priority(Priority) { return std::make_unique<ThreadPriority>(); }
  /// Makes the calling thread a job's as far as the device is concerned: its stream, its random generator. Throws
  /// std::invalid_argument for a request that this device has not.
  [[nodiscard]] virtual std::unique_ptr<DeviceScope> enter(const DeviceRequest& request) = 0;
};

}  // namespace torchshare
