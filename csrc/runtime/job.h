#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/device.h"
#include "hook/op_context.h"
#include "memory/owned_memory.h"
#include "runtime/language_binding.h"
#include "runtime/runtime_state.h"
#include "torchshare/job.h"

namespace torchshare {

/// The implementation of Job, as used by the runtime and the bindings.
class RuntimeJob final : public Job, public OpContext, public std::enable_shared_from_this<RuntimeJob> {
 public:
  /// Registers the job with the runtime's coordinator. Throws std::invalid_argument.
  RuntimeJob(std::shared_ptr<RuntimeState> runtime, JobSpec spec, std::unique_ptr<LanguageBinding> language);
  ~RuntimeJob() override;

  const JobSpec& spec() const override { return spec_; }
  JobState state() const override { return status_.state.load(); }
  JobStats stats() const override;
  /// When its body began and ended; 0: not yet.
  std::pair<std::chrono::nanoseconds, std::chrono::nanoseconds> span() const { return {began_.load(), ended_.load()}; }
  /// See Coordinator::bound.
  std::optional<BoundStats> bound() const { return runtime_->coordinator.bound(id()); }
  /// Its ops, their durations and order; null unless it is watched. Read it only once the thread has left the job.
  const OpWatch* watch() const { return watch_.get(); }
  /// True once the job's thread has finished its work for the job; for a job that was given up, possibly never.
  bool has_left() const { return has_left_.load(std::memory_order_acquire); }
  /// True while its body runs. Unlike `state`, which lags behind, changes at once.
  bool is_in_body() const { return in_body_.load() && !given_up_.load(); }
  /// While set, it enters no op: another job forks the process. Any thread.
  void set_forking(bool forking);
  /// True while its thread is inside an op.
  bool is_in_op() const { return slot_.inside(); }
  /// True while it waits for input, for its turn at the gate, or, suspended or held, for its release.
  bool is_waiting() const { return is_waiting_.load(std::memory_order_relaxed); }
  /// Empty unless it is watched.
  std::optional<GapStats> gaps() const;
  std::string error() const override;
  /// Streaming multiprocessors that the driver granted, once the job runs; empty unless they are partitioned.
  std::optional<int> sms() const;

  /// True if the job may run out of memory that others still have: it has a budget, or runs on a GPU.
  bool limits_memory() const;
  MemoryBudget& budget() const { return *budget_; }

  void suspend() override;
  void resume() override;
  void cancel() override;
  /// Interrupts a cancelled job that runs no ops, by raising in its language. Returns false if that is not possible
  /// now; the caller tries again later.
  bool interrupt();
  /// Gives up a cancelled job whose thread does not end: counts it as ended. If the thread reaches an op later, it is
  /// unwound there; what it does until then has no effect on the job's result.
  void give_up();
  bool is_given_up() const { return given_up_.load(); }
  bool cancel_requested() const override { return cancel_requested_.load(std::memory_order_acquire); }

  // On the job's own thread.

  /// Waits for the start, runs `body`, destroys it, and ends the job. Called once, on the thread that becomes the
  /// job's.
  void run(Body body);
  void checkpoint() override;
  /// Called when the cancellation has reached the job's code: ops run again, so that the job can clean up.
  void acknowledge_cancel();
  /// Called when code that swallows exceptions has lost the cancellation: the next op throws again.
  void repeat_cancel();
  void sleep(std::chrono::nanoseconds duration) override;
  void begin_input() override;
  void end_input() override;
  void expect_steps(std::uint64_t more, bool for_good) override;
  /// Called before its first step if it goes on from a checkpoint, after `steps` steps.
  void go_on_after(std::uint64_t steps);
  /// Called when what the job keeps in memory has left the device, and when it is back.
  void report_spilled(bool spilled);
  void begin_step() override;
  void end_step() override;
  void begin_sub_batch() override;
  void end_sub_batch() override;
  /// Begins and ends of sub-batches, in nanoseconds.
  using SubBatches = std::vector<std::pair<std::int64_t, std::int64_t>>;
  /// Replaces the sub-batches that have ended since the last step, and returns them. The next step counts them.
  SubBatches exchange_sub_batches(SubBatches others) { return std::exchange(sub_batches_in_step_, std::move(others)); }
  bool has_sub_batches() const { return !sub_batches_in_step_.empty(); }
  void synchronize() override;
  /// See DeviceScope::open_stream.
  std::uintptr_t open_stream() { return device_->open_stream(); }
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
  class Waiting;

  JobId id() const { return registration_.job(); }
  void attend() override;
  void wait_while(Attention bit, JobReport::Kind reason);
  MemoryOwner::Options memory_options() const;
  void own_memory();
  JobState run_body(const Body& body);
  void leave();
  void report(JobReport::Kind kind, std::uint64_t steps = 0, JobState state = JobState::kRunning);
  template <class Wait>
  void block(std::string_view reason, Wait wait);
  template <class Work>
  void outside_gate(Work work);
  template <class Work>
  void without_language_lock(Work work);
  void record_span(EventKind kind, std::chrono::nanoseconds begin, std::uint64_t number, std::string_view detail = {});
  void record_sub_batches();
  void record_budget();
  void unwind();
  void begin_idle(std::chrono::nanoseconds now);
  void end_idle(std::chrono::nanoseconds now);

  const std::shared_ptr<RuntimeState> runtime_;
  const JobSpec spec_;
  const std::unique_ptr<LanguageBinding> language_;
  const std::unique_ptr<ThreadPriority> priority_;
  const std::shared_ptr<MemoryBudget> budget_;
  JobStatus status_;
  DeviceScope* device_ = nullptr;  // non-null while the job's thread is set up; used on that thread
  std::atomic<int> sms_{0};        // 0: not partitioned
  std::atomic<bool> cancel_requested_{false};
  std::atomic<bool> in_body_{false};
  std::atomic<bool> is_waiting_{false};  // written by the job's own thread
  std::atomic<bool> given_up_{false};
  std::atomic<bool> has_left_{false};
  std::atomic<std::uint64_t> sub_batches_{0};
  std::atomic<std::chrono::nanoseconds> waited_{std::chrono::nanoseconds(0)};
  // As last read from the thread.
  mutable std::atomic<std::chrono::nanoseconds> cpu_{std::chrono::nanoseconds(0)};
  mutable std::atomic<std::chrono::nanoseconds> core_wait_{std::chrono::nanoseconds(0)};
  std::atomic<std::chrono::nanoseconds> input_{std::chrono::nanoseconds(0)};
  std::atomic<std::chrono::nanoseconds> began_{std::chrono::nanoseconds(0)};
  std::atomic<std::chrono::nanoseconds> ended_{std::chrono::nanoseconds(0)};
  // Written and read by the job's own thread only.
  std::chrono::nanoseconds step_begin_{0};
  std::chrono::nanoseconds sub_batch_begin_{0};
  SubBatches sub_batches_in_step_;
  std::chrono::nanoseconds input_begin_{0};
  std::chrono::nanoseconds wait_begin_{0};
  std::string wait_reason_;
  bool wait_is_inner_ = false;  // of a wait for input
  int waits_ = 0;               // begun and not ended
  std::string error_;           // read by others once the state is terminal

  std::shared_ptr<EventLog> log_;
  Coordinator::Registration registration_;  // last: it refers to the members above
};

/// The implementation behind `job`.
inline RuntimeJob& runtime_job(Job& job) {
  return static_cast<RuntimeJob&>(job);
}

}  // namespace torchshare
