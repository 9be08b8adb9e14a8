#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "device/device.h"

namespace torchshare {

/// A clock that only moves by `advance`, which wakes the threads whose deadlines have come. Any thread.
class ManualClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override;
  void advance(std::chrono::nanoseconds by);
  void wait(EventCount& wake, std::uint32_t seen, std::chrono::nanoseconds deadline) override;
  /// How many threads wait.
  std::size_t waiting() const;

 private:
  mutable std::mutex mutex_;  // guards the fields below
  std::chrono::nanoseconds now_{0};
  std::multimap<std::chrono::nanoseconds, EventCount*> waits_;  // by deadline
};

/// A queue of work in virtual time. Any thread.
class FakeStream : public DeviceStream {
 public:
  explicit FakeStream(Clock& clock) : clock_(clock) {}

  /// Launches work of that duration after everything launched before.
  void launch(std::chrono::nanoseconds work);
  /// The same on another stream of the job.
  void launch_beside(std::chrono::nanoseconds work);
  void set_capturing(bool capturing);
  std::size_t markers_recorded() const;
  /// The device fails: it reaches no further marker, and calls throw "the device failed".
  void fail();

  Marker record_marker() override { return append(markers_); }
  Marker passed() const override;
  bool has_work() const override;
  bool has_work_beside(std::uintptr_t waiting) const override;
  void check() const override;
  std::unique_ptr<ThreadScope> use() override { return nullptr; }
  void follow_current() override {}
  Stamp stamp() override { return append(stamps_); }
  std::optional<std::chrono::nanoseconds> between(Stamp from, Stamp to) override;
  std::size_t stamps() const override { return 64; }
  /// Waits for virtual time.
  void synchronize() override;

 private:
  /// Appends the time at which the device will have finished the work launched so far; returns its number, 0 during a
  /// capture.
  std::uint64_t append(std::vector<std::chrono::nanoseconds>& times);
  void throw_if_failed() const;

  Clock& clock_;
  mutable std::mutex mutex_;  // guards every field below
  std::chrono::nanoseconds free_at_{0};
  std::chrono::nanoseconds other_free_at_{0};
  bool capturing_ = false;
  std::optional<std::chrono::nanoseconds> failed_at_;
  std::vector<std::chrono::nanoseconds> markers_;  // when the device reaches each
  std::vector<std::chrono::nanoseconds> stamps_;   // the device's time then
};

/// A graph that launches one piece of work. Its capture begins with ops, as torch's does, and fails if `fails`.
class FakeGraph final : public DeviceGraph {
 public:
  static constexpr std::chrono::nanoseconds kWork = std::chrono::milliseconds(1);

  FakeGraph(std::shared_ptr<FakeStream> stream, bool fails) : stream_(std::move(stream)), fails_(fails) {}
  void begin_capture() override;
  void end_capture() override;
  void launch() override { stream_->launch(kWork); }

 private:
  const std::shared_ptr<FakeStream> stream_;
  const bool fails_;
};

/// A device for tests: virtual time, and priorities that are only recorded. Any thread.
class FakeDevice final : public Device {
 public:
  enum class Runs { kSynchronous, kAsynchronous };

  explicit FakeDevice(Runs runs = Runs::kSynchronous) : runs_(runs) {}
  std::string_view name() const override { return "fake"; }
  ManualClock& clock() override { return clock_; }
  bool is_asynchronous() const override { return runs_ == Runs::kAsynchronous; }
  std::unique_ptr<DeviceScope> enter(const DeviceRequest& request) override;
  /// The current priorities, by thread.
  std::map<std::thread::id, Priority> held() const;
  /// The stream of the calling thread, which is a job's.
  FakeStream& stream();
  void check() const override;
  /// The device is lost: no job may begin.
  void lose() { lost_.store(true); }
  /// Captures fail from now on.
  void let_captures_fail() { captures_fail_.store(true); }

 private:
  class Scope;
  const Runs runs_;
  ManualClock clock_;
  std::atomic<bool> captures_fail_{false};
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;  // guards every field below
  std::map<std::thread::id, Priority> held_;
  std::map<std::thread::id, std::shared_ptr<FakeStream>> streams_;
};

}  // namespace torchshare
