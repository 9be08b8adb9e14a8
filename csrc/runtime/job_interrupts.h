#pragma once

#include <atomic>
#include <functional>
#include <string_view>

#include "runtime/job_parts.h"
#include "runtime/job_times.h"

namespace torchshare {

/// What stops a job: it is suspended, held, cancelled, waits for its turn at the gate or for another job's fork.
class JobInterrupts {
 public:
  /// Calls `on_suspend` on the job's thread before it is parked.
  JobInterrupts(const JobParts& job, JobTimes& times, std::function<void()> on_suspend)
      : job_(job), times_(times), on_suspend_(std::move(on_suspend)) {}
  JobInterrupts(const JobInterrupts&) = delete;  // of one job
  JobInterrupts& operator=(const JobInterrupts&) = delete;

  // Any thread; see RuntimeJob.
  void suspend();
  void resume() { job_.runtime.gate.clear(job_.slot, kSuspend); }
  void set_forking(bool forking);
  void cancel();
  void give_up();
  /// True once a cancellation has reached the job's code.
  bool is_acknowledged() const { return (job_.slot.interrupts.load(std::memory_order_acquire) & kCancel) == 0; }
  bool cancel_requested() const { return cancel_requested_.load(std::memory_order_acquire); }
  bool is_given_up() const { return given_up_.load(); }
  bool is_waiting() const { return is_waiting_.load(std::memory_order_relaxed); }

  // The job's own thread.
  /// Called before an op if any `interrupts` is set. Returns when the op may run.
  void handle_interrupts();
  /// Called between ops; `parks`: whether the job may be suspended or held here.
  void yield_point(bool parks);
  void acknowledge_cancel();
  void repeat_cancel();
  void set_waiting(bool waiting) { is_waiting_.store(waiting, std::memory_order_relaxed); }
  /// Runs `wait`, which blocks, without the language's lock, and records it as a wait.
  template <class Wait>
  void block(std::string_view reason, Wait wait);

 private:
  class Waiting;

  /// Parks the job if it is suspended or held; returns whether it was.
  bool park(std::uint32_t interrupts);
  void wait_while(Interrupt bit, std::string_view reason, JobMessage::Kind kind);
  /// Returns whether the job was admitted.
  bool wait_turn();
  void unwind();

  const JobParts& job_;
  JobTimes& times_;
  const std::function<void()> on_suspend_;
  std::atomic<bool> cancel_requested_{false};
  std::atomic<bool> given_up_{false};
  std::atomic<bool> is_waiting_{false};  // written by the job's own thread
};

template <class Wait>
void JobInterrupts::block(std::string_view reason, Wait wait) {
  const auto begin = job_.now();
  without_lock(job_.language, wait);
  times_.add_wait(begin, reason);
}

}  // namespace torchshare
