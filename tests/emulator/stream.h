#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device.h"
#include "race_check.h"

namespace emulator {

/// One recording of an event: whether the work before it has ended, when, and what it comes after. Any thread.
class Completion {
 public:
  void complete();
  bool done() const;
  void wait() const;
  /// When it completed; `done` must be true.
  std::chrono::steady_clock::time_point at() const;

  VectorClock clock;  ///< guarded by RaceCheck's mutex

 private:
  mutable std::mutex mutex_;  // guards every field below
  mutable std::condition_variable changed_;
  bool done_ = false;
  std::chrono::steady_clock::time_point at_;
};

/// An entry of a stream's queue, or a node of a graph.
struct Work {
  const char* name = "";
  std::function<void()> run = {};
  std::vector<Access> accesses = {};
  std::chrono::nanoseconds duration{0};
  bool takes_slot = false;                       ///< a kernel, not a copy or an event
  std::shared_ptr<Completion> awaits = nullptr;  ///< runs after it
  std::shared_ptr<Completion> completes = nullptr;
};

struct Capture;

/// A stream: a queue and the thread that runs it in order. Any thread.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  static std::shared_ptr<Stream> create(int device, int priority, unsigned flags);
  /// The stream of a handle; null for one that was destroyed or never was. Null, cudaStreamLegacy and
  /// cudaStreamPerThread are the current device's legacy default stream.
  static std::shared_ptr<Stream> of(cudaStream_t handle);
  static std::shared_ptr<Stream> legacy(int device);
  static std::vector<std::shared_ptr<Stream>> all(int device);

  cudaStream_t handle() { return reinterpret_cast<cudaStream_t>(this); }
  int device() const { return device_; }
  bool is_legacy() { return this == legacy(device_).get(); }
  int priority() const { return priority_; }
  unsigned flags() const { return flags_; }
  bool blocking() const { return (flags_ & cudaStreamNonBlocking) == 0; }

  /// Waits while the queue is full. The legacy stream and the blocking ones wait for each other
  /// (CUDA C++ Programming Guide, "Default Stream").
  void enqueue(Work work);
  /// Whether all work has ended; if so, what the host enqueues later comes after it.
  bool query();
  /// Waits for all that was enqueued before.
  void synchronize();
  /// Later calls of `of` do not find it; what is in the queue still runs.
  void destroy();

  std::shared_ptr<Capture> capture;  ///< guarded by Capture's mutex

 private:
  Stream(int device, int priority, unsigned flags) : device_(device), priority_(priority), flags_(flags) {}
  void push(Work work);
  void work();
  bool idle() const;
  void await_implicitly();

  const int device_;
  const int priority_;
  const unsigned flags_;
  VectorClock clock_;                  // guarded by RaceCheck's mutex
  std::optional<std::size_t> number_;  // in clocks, from the first work on; guarded by RaceCheck's mutex
  mutable std::mutex mutex_;           // guards every field below
  mutable std::condition_variable changed_;
  std::deque<Work> queue_;
  std::uint64_t enqueued_ = 0;
  std::uint64_t ended_ = 0;
  bool started_ = false;
  bool destroyed_ = false;
};

/// Waits for all that was enqueued before on the device's streams.
void synchronize_device(int device);

/// Runs one piece of work of a device on the calling thread. `claim`: its place in the line for a slot, if it has one.
/// Returns after `next` was called and the slot was released; `next` may claim a slot for what follows.
void execute(const Work& work, int device, int priority, std::optional<Slots::Claim> claim,
             const std::function<void()>& next);

}  // namespace emulator
