#pragma once

#include <chrono>
#include <optional>

namespace torchshare {

/// The priority of one job's thread, for the job's whole life: other threads may read and raise it, even before the
/// thread starts and after it has ended. Any thread unless noted otherwise. The base class does not change priorities.
///
/// Note [Priority inversion]
/// A thread of idle priority that is preempted while it holds a lock keeps the lock until a processor is idle, which
/// may take seconds; every thread that waits for the lock waits as long. The primary's steps therefore take no lock
/// that a lower job's thread takes, except one: the GIL. Where the system allows it (CAP_SYS_NICE, or RLIMIT_NICE of
/// 20), a thread gets ordinary priority while others wait for it: by StallWatch, around work of the process (Ungated),
/// and for good once its job is cancelled or has ended.
class ThreadPriority {
 public:
  ThreadPriority() = default;
  virtual ~ThreadPriority() = default;
  ThreadPriority(const ThreadPriority&) = delete;  // of one thread
  ThreadPriority& operator=(const ThreadPriority&) = delete;

  /// Gives the calling thread its job's priority, until `leave`. Threads it starts in between inherit it.
  virtual void enter() {}
  virtual void leave() {}

  /// Gives the thread ordinary priority, until `lower` has been called as often.
  virtual void raise() {}
  virtual void lower() {}
  /// Gives the thread, its workers and the processes that they started ordinary priority while `unopposed`: no job runs
  /// that they could disturb.
  virtual void set_unopposed(bool /*unopposed*/) {}
  /// Gives the thread, its workers and their processes ordinary priority permanently: the job is ending.
  virtual void raise_for_good() {}
  /// Processor time that the thread has used so far; empty if unknown.
  virtual std::optional<std::chrono::nanoseconds> used() const { return std::nullopt; }
  /// Time that the thread has been ready to run while others had the processors; empty if unknown.
  virtual std::optional<std::chrono::nanoseconds> waited() const noexcept { return std::nullopt; }
};

/// Applies `priority` to the calling thread, until the destructor. Same thread.
class PriorityScope {
 public:
  explicit PriorityScope(ThreadPriority& priority) : priority_(priority) { priority_.enter(); }
  ~PriorityScope() { priority_.leave(); }
  PriorityScope(const PriorityScope&) = delete;  // bound to a thread
  PriorityScope& operator=(const PriorityScope&) = delete;

 private:
  ThreadPriority& priority_;
};

}  // namespace torchshare
