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

/// A job's own queue on an asynchronous device. Any thread, unless it says otherwise.
class DeviceStream {
 public:
  using Marker = std::uint64_t;
  using Stamp = std::uint64_t;

  virtual ~DeviceStream() = default;
  /// Records a marker after everything launched so far, without waiting. Markers increase. 0: a graph is being
  /// captured.
  virtual Marker record_marker() = 0;
  /// The latest marker that the device has reached. Reads one word.
  virtual Marker passed() const = 0;
  /// Throws the device's error, if it has one: markers behind work that failed are never reached.
  virtual void check() const = 0;

  // The job's own thread.
  /// Records a time stamp after everything launched so far; 0 as above.
  virtual Stamp stamp() = 0;
  /// Device time between two stamps, of which `to` is the later; nothing while the device has not reached it, while a
  /// graph is being captured, or if one is so old that it was reused.
  virtual std::optional<std::chrono::nanoseconds> between(Stamp from, Stamp to) = 0;
  /// How many stamps are kept.
  virtual std::size_t stamps() const = 0;
  /// Waits for everything launched so far, on this stream and on the job's others. Throws the device's errors.
  virtual void synchronize() = 0;
};

/// Work captured from a job's stream once and launched as a whole. The job's own thread.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void begin_capture() = 0;
  /// Throws if the capture failed; the graph is then unusable.
  virtual void end_capture() = 0;
  virtual void launch() = 0;
};

/// What a job asks of a device.
struct DeviceRequest {
  Priority priority = Priority::kSecondary;
  std::uint64_t seed = 0;       ///< of the job's generator on the device
  std::optional<int> sms = {};  ///< streaming multiprocessors its work may use; default: all
};

/// What a job's thread holds of a device, until the destructor. On the thread that made it, except `stream`.
class DeviceScope {
 public:
  virtual ~DeviceScope() = default;
  /// Null on a synchronous device.
  virtual std::shared_ptr<DeviceStream> stream() { return nullptr; }
  /// The job's generator on the device; undefined on the CPU, where the job brings its own.
  virtual at::Generator generator() { return {}; }
  /// Streaming multiprocessors that the driver granted; nothing unless they are divided.
  virtual std::optional<int> sms() const { return std::nullopt; }
  /// Null if the device has no graphs.
  virtual std::unique_ptr<DeviceGraph> make_graph() { return nullptr; }
  /// Another stream like the job's own, for as long as the job runs: the device's handle, or 0 if it has none.
  virtual std::uintptr_t open_stream() { return 0; }
};

/// The seam between the runtime and a machine. Any thread.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual Clock& clock() = 0;
  /// Work is launched by the host and runs later, on streams.
  virtual bool is_asynchronous() const { return false; }
  /// The type of device whose memory is counted.
  virtual c10::DeviceType memory_type() const { return c10::DeviceType::CPU; }
  /// From now on, memory of this device that has an owner is counted.
  virtual void install_memory() { install_cpu_memory(); }
  /// For the thread of a job of that priority.
  virtual std::unique_ptr<ThreadPriority> thread_priority(Priority) { return std::make_unique<ThreadPriority>(); }
  /// Sets the calling thread up for a job: its stream, its generator. Throws std::invalid_argument for an unsupported
  /// request.
  [[nodiscard]] virtual std::unique_ptr<DeviceScope> enter(const DeviceRequest& request) = 0;
  /// Throws std::runtime_error if an asynchronous error has made the device unusable for this process.
  virtual void check() const {}
};

}  // namespace torchshare
