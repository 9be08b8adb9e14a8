#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "device/device.h"
#include "hook/op_context.h"
#include "memory/owned_memory.h"
#include "runtime/job_interrupts.h"
#include "runtime/job_parts.h"
#include "runtime/job_times.h"
#include "runtime/language_binding.h"
#include "runtime/periodic_units.h"
#include "runtime/runtime_state.h"
#include "runtime/serving_threads.h"
#include "torchshare/job.h"

namespace torchshare {

/// The implementation of Job, as used by the runtime and the bindings.
class RuntimeJob final : public Job, public OpContext, public std::enable_shared_from_this<RuntimeJob> {
 public:
  /// Registers the job with the runtime's coordinator; see NewJob for `replaces`. Throws std::invalid_argument.
  RuntimeJob(std::shared_ptr<RuntimeState> runtime, JobSpec spec, std::unique_ptr<LanguageBinding> language,
             const RuntimeJob* replaces = nullptr);
  ~RuntimeJob() override;

  const JobSpec& spec() const override { return spec_; }
  JobState state() const override { return status_.state.load(); }
  JobStats stats() const override;
  /// When its body began and ended; 0: not yet.
  std::pair<std::chrono::nanoseconds, std::chrono::nanoseconds> span() const { return times_.span(); }
  /// See Coordinator::bound.
  std::optional<BoundStats> bound() const { return runtime_->coordinator.bound(id()); }
  /// Its ops, their durations and order; null unless it is watched. Read it only once the thread has left the job.
  const OpWatch* watch() const { return watch_.get(); }
  /// True once the job's thread has finished its work for the job; for a job that was given up, possibly never.
  bool has_left() const { return has_left_.load(std::memory_order_acquire); }
  /// What its threads have in common; empty unless its body runs. Any thread.
  JobResources resources() const { return serving_threads_.resources(); }
  const LanguageBinding& language() const { return *language_; }
  /// Throws std::runtime_error if an asynchronous error has made the device unusable for this process.
  void check_device() const { runtime_->device->check(); }
  /// True while its body runs. Unlike `state`, which lags behind, changes at once.
  bool is_in_body() const { return in_body_.load() && !is_given_up(); }
  /// While set, it enters no op: another job forks the process. Any thread.
  void set_forking(bool forking) { interrupts_.set_forking(forking); }
  /// True while its thread is inside an op.
  bool is_in_op() const { return slot_.inside(); }
  /// True while it waits for input, for its turn at the gate, or, suspended or held, for its release.
  bool is_waiting() const { return interrupts_.is_waiting(); }
  /// Limits lower jobs so that the job's requests are answered within `target`. Throws std::invalid_argument if the
  /// runtime has another rule for lower jobs. Any thread.
  void promise(const LatencyTarget& target);
  /// Called when a request has been answered; with the times since it arrived and since the job took it. Any thread.
  void answered(std::chrono::nanoseconds since_arrival, std::chrono::nanoseconds since_taken);
  /// Called when the job finds a request that its client gave up before the job took it. Any thread.
  void given_up(std::chrono::nanoseconds since_arrival);
  /// See Coordinator::latency.
  std::optional<LatencyStats> latency() const { return runtime_->coordinator.latency(id()); }
  /// Empty unless it is watched.
  std::optional<GapStats> gaps() const;
  std::string error() const override;
  /// Streaming multiprocessors that the driver granted, once the job runs; empty unless they are partitioned.
  std::optional<int> sms() const;

  /// True if the job may run out of memory that others still have: it has a budget, or runs on a GPU.
  bool limits_memory() const;
  MemoryBudget& budget() const { return *budget_; }

  void suspend() override { interrupts_.suspend(); }
  void resume() override { interrupts_.resume(); }
  void cancel() override {
    interrupts_.cancel();
    serving_threads_.raise_for_good();
  }
  /// Interrupts a cancelled job that runs no ops, by raising in its language. Returns false if that is not possible
  /// now; the caller tries again later.
  bool interrupt();
  /// Gives up a cancelled job whose thread does not end: counts it as ended. If the thread reaches an op later, it is
  /// unwound there; what it does until then has no effect on the job's result.
  void give_up() { interrupts_.give_up(); }
  /// Threads that answer its requests.
  ServingThreads& serving_threads() { return serving_threads_; }
  bool is_given_up() const { return interrupts_.is_given_up(); }
  bool cancel_requested() const override { return interrupts_.cancel_requested(); }

  // On the job's own thread.

  /// Waits for the start, runs `body`, destroys it, and ends the job. Called once, on the thread that becomes the
  /// job's.
  void run(Body body);
  void yield_point() override { interrupts_.yield_point(!is_ungated()); }  // other threads wait for an ungated one
  /// Called when the cancellation has reached the job's code: ops run again, so that the job can clean up.
  void acknowledge_cancel() { interrupts_.acknowledge_cancel(); }
  /// Called when code that swallows exceptions has lost the cancellation: the next op throws again.
  void repeat_cancel() { interrupts_.repeat_cancel(); }
  void sleep(std::chrono::nanoseconds duration) override;
  void begin_input() override;
  void end_input() override;
  /// Called when it has taken a request, and when that has been dealt with.
  void set_answering(bool answers) {
    slot_.set_answering(answers);
    took_request_ = took_request_ || answers;
  }
  /// Makes it a periodic job, unless its spec has. Throws std::invalid_argument if deadlines would be missed, without
  /// any period, or for another one than before.
  void expect_periods(std::optional<std::chrono::nanoseconds> period, std::optional<std::chrono::nanoseconds> deadline,
                      std::optional<std::chrono::nanoseconds> unit_time);
  /// Begins a loop over its units, with the first release now. Throws std::logic_error inside such a loop.
  void begin_periods();
  /// Waits for the next release.
  void await_release();
  void begin_unit();
  /// Called when the device has done the work of the unit.
  void end_unit();
  void end_periods();
  /// Empty unless it is periodic. Any thread, once its units have begun.
  std::optional<PeriodStats> periods() const { return units_.stats(); }
  /// See Coordinator.
  bool has_deadline_problem() const { return runtime_->coordinator.has_deadline_problem(); }
  std::string deadline_problem() const { return runtime_->coordinator.deadline_problem(); }
  void expect_steps(std::uint64_t more, bool for_good) override;
  /// Called before its first step if it goes on from a checkpoint, after `steps` steps.
  void go_on_after(std::uint64_t steps);
  /// Called when what the job keeps in memory has left the device, and when it is back.
  void set_spilled(bool spilled);
  void begin_step() override { times_.begin_step(); }
  void end_step() override;
  void begin_sub_batch() override { times_.begin_sub_batch(); }
  void end_sub_batch() override { times_.end_sub_batch(); }
  /// Replaces the sub-batches that have ended since the last step, and returns them. The next step counts them.
  JobTimes::SubBatches exchange_sub_batches(JobTimes::SubBatches others) {
    return times_.exchange_sub_batches(std::move(others));
  }
  bool has_sub_batches() const { return times_.has_sub_batches(); }
  void synchronize() override;
  /// See DeviceScope::open_stream.
  std::uintptr_t open_stream() { return device_->open_stream(); }
  /// See DeviceScope::take_part. Throws std::invalid_argument if the device has no parts, std::logic_error during a
  /// capture.
  std::unique_ptr<DevicePart> take_part(int sms);
  /// See DeviceStream::give_out. Any thread of the job's.
  void give_out() {
    if (const auto stream = resources().stream) {
      stream->give_out();
    }
  }
  /// Captures what `work` launches. Throws std::logic_error if the device does not support graphs, and the exceptions
  /// of `work`.
  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work);
  /// Launches a captured graph as one op.
  void launch(DeviceGraph& graph, const std::string& name);

  void refuse_memory(const BudgetExceeded& error) override { language_->refuse_memory(error); }
  void raise_priority() override { priority_->raise(); }
  void lower_priority() override { priority_->lower(); }
  void begin_wait(std::string_view reason) override;
  void end_wait() override;

 private:
  class InBody;

  JobId id() const { return registration_.job(); }
  void handle_interrupts() override { interrupts_.handle_interrupts(); }
  MemoryOwner::Options memory_options() const;
  void own_memory();
  JobState run_body(const Body& body);
  void set_error(const std::exception& error) noexcept;
  void leave();
  template <class Work>
  void outside_gate(Work work);
  void record_budget();
  void begin_idle(std::chrono::nanoseconds now);
  void end_idle(std::chrono::nanoseconds now);
  std::shared_ptr<DeviceStream> own_stream() const;

  const std::shared_ptr<RuntimeState> runtime_;
  const JobSpec spec_;
  const std::unique_ptr<LanguageBinding> language_;
  const std::optional<std::chrono::nanoseconds> ends_by_;  // its deadline, of its first attempt
  const std::unique_ptr<ThreadPriority> priority_;
  const std::shared_ptr<MemoryBudget> budget_;
  const JobParts parts_;
  JobStatus status_;
  JobTimes times_;
  JobInterrupts interrupts_;
  std::optional<PeriodicTask> task_;  // of a periodic job; set by its own thread, or before that begins
  PeriodicUnits units_;
  bool took_request_ = false;               // since its last step
  std::shared_ptr<DeviceEvent> submitted_;  // what the submitter had launched; until the body begins
  DeviceScope* device_ = nullptr;           // non-null while the job's thread is set up; used on that thread
  std::atomic<int> sms_{0};                 // 0: not partitioned
  std::atomic<bool> in_body_{false};
  std::atomic<bool> has_left_{false};
  bool wait_is_inner_ = false;  // of a wait for input; the job's own thread
  std::string error_;           // read by others once the state is terminal
  ServingThreads serving_threads_;

  Coordinator::Registration registration_;  // last: it refers to the members above
};

/// The implementation behind `job`.
inline RuntimeJob& runtime_job(Job& job) {
  return static_cast<RuntimeJob&>(job);
}

}  // namespace torchshare
