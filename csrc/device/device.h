#pragma once

#include <ATen/core/Generator.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "device/clock.h"
#include "device/thread_priority.h"
#include "memory/cpu_memory.h"
#include "torchshare/device.h"
#include "torchshare/values.h"

namespace torchshare {

/// Something that holds for the calling thread until the destructor. Same thread.
class ThreadScope {
 public:
  virtual ~ThreadScope() = default;
};

/// A job's own queue on an asynchronous device. Any thread unless noted otherwise.
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
  /// True while the device has work to do on one of the streams that it has made for the job, whoever launched it, and
  /// during a capture. Calls the driver.
  virtual bool has_work() const = 0;
  /// True if the device has certainly done all that was launched on any of the job's streams. Calls the driver.
  virtual bool has_finished() const { return !has_work(); }
  /// The calling thread's current stream, as the device knows it; 0 if it has no streams.
  virtual std::uintptr_t current() const { return 0; }
  /// True unless the device has certainly done all that was launched on the streams other than that one, which waits.
  virtual bool has_work_beside(std::uintptr_t /*waiting*/) const { return false; }
  /// Throws the device's error, if it has one: markers behind work that failed are never reached.
  virtual void check() const = 0;
  /// The calling thread launches its work on this stream.
  [[nodiscard]] virtual std::unique_ptr<ThreadScope> use() = 0;
  /// The device's own handle of it; 0 if it has none.
  virtual std::uintptr_t handle() const { return 0; }
  /// Called before each op on a thread of the job: whatever stream is current there belongs to the job from now on, as
  /// its own does.
  virtual void follow_current() = 0;
  /// Called after each op on a thread of the job that is gated.
  virtual void end_op() noexcept {}
  /// The calling thread gives one of its tensors to code that may launch work where the program would: that work comes
  /// after what the thread has launched.
  virtual void give_out() {}
  /// True while a graph is being captured on it.
  virtual bool is_capturing() const { return false; }
  /// Waits for the end of the capture, at most kLongestCapture: a capture that waits for the calling thread must fail,
  /// not hang.
  void wait_for_capture() const {
    const auto deadline = std::chrono::steady_clock::now() + kLongestCapture;
    while (is_capturing() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  static constexpr std::chrono::seconds kLongestCapture{10};
  /// Waits for everything launched so far, on this stream and on the job's others. Throws the device's errors.
  virtual void synchronize() = 0;

  // The job's own thread.
  /// Records a time stamp after everything launched so far; 0 while a graph is being captured.
  virtual Stamp stamp() = 0;
  /// Device time between two stamps, of which `to` is the later; empty while the device has not reached it, while a
  /// graph is being captured, or if a stamp is so old that it was reused.
  virtual std::optional<std::chrono::nanoseconds> between(Stamp from, Stamp to) = 0;
  /// The number of stamps that are kept.
  virtual std::size_t stamps() const = 0;
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

/// What a thread has launched on an asynchronous device up to some moment.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

/// A job's request to a device.
struct DeviceRequest {
  std::string job = {};  ///< its name, for warnings
  Priority priority = Priority::kSecondary;
  std::uint64_t seed = 0;                        ///< of the job's generator on the device
  std::optional<int> sms = {};                   ///< streaming multiprocessors its work may use; default: all
  std::shared_ptr<DeviceEvent> after = nullptr;  ///< the job's work begins when the device has reached it
};

/// Some of a device's streaming multiprocessors, and a stream of the job that uses only these. The destructor gives
/// them back; the stream stays the job's.
class DevicePart {
 public:
  virtual ~DevicePart() = default;
  virtual int sms() const = 0;
  /// The device's own handle of the stream.
  virtual std::uintptr_t stream() const = 0;
};

/// The part of a device that a job's thread holds, until the destructor. Used on the thread that made it, except
/// `stream`.
class DeviceScope {
 public:
  virtual ~DeviceScope() = default;
  /// Null on a synchronous device.
  virtual std::shared_ptr<DeviceStream> stream() { return nullptr; }
  /// The job's generator on the device; undefined on the CPU, where the job has its own.
  virtual at::Generator generator() { return {}; }
  /// Streaming multiprocessors that the driver granted; empty unless they are partitioned.
  virtual std::optional<int> sms() const { return std::nullopt; }
  /// Null if the device does not support graphs.
  virtual std::unique_ptr<DeviceGraph> make_graph() { return nullptr; }
  /// Opens another stream like the job's own, until the job ends. Returns the device's handle, or 0 if it has no
  /// streams.
  virtual std::uintptr_t open_stream() { return 0; }
  /// Takes at least `sms` multiprocessors that no other part has. Throws std::invalid_argument if so many are not left.
  /// Null if the device has no parts. Not during a capture.
  virtual std::unique_ptr<DevicePart> take_part(int /*sms*/) { return nullptr; }
};

/// The seam between the runtime and a machine. Any thread.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual Clock& clock() = 0;
  /// True if work is launched by the CPU and runs later, on streams.
  virtual bool is_asynchronous() const { return false; }
  /// The device whose memory is counted.
  virtual c10::Device memory() const { return c10::DeviceType::CPU; }
  /// Bytes that jobs could still allocate; empty if the device does not limit them itself.
  virtual std::optional<std::int64_t> free_memory() const { return std::nullopt; }
  /// Starts counting memory of this device that has an owner.
  virtual void install_memory() { install_cpu_memory(); }
  /// The priority object for the thread of a job of that priority.
  virtual std::unique_ptr<ThreadPriority> thread_priority(Priority, DevicePriority) {
    return std::make_unique<ThreadPriority>();
  }
  /// The same for a thread that works for a job only at times, which must get its own priority back.
  virtual std::unique_ptr<ThreadPriority> lent_thread_priority(Priority priority, DevicePriority how) {
    return thread_priority(priority, how);
  }
  /// Records what the calling thread has launched so far, for a job that may read its results. Null on a synchronous
  /// device, and if the device has done it.
  virtual std::shared_ptr<DeviceEvent> record_event() { return nullptr; }
  /// Sets the calling thread up for a job: its stream, its generator. Throws std::invalid_argument for an unsupported
  /// request.
  [[nodiscard]] virtual std::unique_ptr<DeviceScope> enter(const DeviceRequest& request) = 0;
  /// Throws std::runtime_error if an asynchronous error has made the device unusable for this process.
  virtual void check() const {}
};

}  // namespace torchshare
