#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/job_parts.h"

namespace torchshare {

/// What a job does and when: the spans in its log, and their sums. Written by the job's own thread; any thread reads
/// the sums.
class JobTimes {
 public:
  static constexpr std::string_view kAtGate = "gate";  ///< a reason to wait

  JobTimes(const JobParts& job, const JobStatus& status) : job_(job), status_(status) {}
  ~JobTimes() { close(); }
  JobTimes(const JobTimes&) = delete;  // of one job
  JobTimes& operator=(const JobTimes&) = delete;

  /// Called once the job is registered.
  void open() { log_ = job_.runtime.timeline.open_log(); }
  /// Called when the job has ended: it records nothing any more.
  void close() { job_.runtime.timeline.close_log(log_); }

  void begin_body() { began_.store(job_.now()); }
  void end_body() { ended_.store(job_.now()); }
  /// Reads what the thread has used, before it ends.
  void read_thread();

  void begin_step() { step_begin_ = job_.now(); }
  /// `memory`: the most bytes that the job held during the step; 0: unknown.
  void end_step(std::int64_t memory);
  void begin_sub_batch() { sub_batch_begin_ = job_.now(); }
  void end_sub_batch() { sub_batches_in_step_.emplace_back(sub_batch_begin_.count(), job_.now().count()); }
  /// Begins and ends of sub-batches, in nanoseconds.
  using SubBatches = std::vector<std::pair<std::int64_t, std::int64_t>>;
  /// See RuntimeJob.
  SubBatches exchange_sub_batches(SubBatches others) { return std::exchange(sub_batches_in_step_, std::move(others)); }
  bool has_sub_batches() const { return !sub_batches_in_step_.empty(); }
  void begin_input(std::chrono::nanoseconds now) { input_begin_ = now; }
  void end_input(std::chrono::nanoseconds now);
  /// Returns false for a wait inside another, which counts as part of that one.
  bool begin_wait(std::string_view reason, std::chrono::nanoseconds now);
  bool end_wait();
  /// Called when the job has answered a request. Any thread.
  void record_request(std::chrono::nanoseconds arrived, std::chrono::nanoseconds now, std::chrono::nanoseconds queued);
  /// The part of the waits that it spent waiting for its turn at the gate.
  std::chrono::nanoseconds at_gate() const { return at_gate_.load(); }
  void add_wait(std::chrono::nanoseconds begin, std::string_view reason);

  /// When the body began and ended; 0: not yet.
  std::pair<std::chrono::nanoseconds, std::chrono::nanoseconds> span() const { return {began_.load(), ended_.load()}; }
  /// Sets the times and counts of `stats`.
  void set(JobStats& stats) const;

 private:
  using Total = std::atomic<std::chrono::nanoseconds>;

  void record_sub_batches();
  void record(EventKind kind, std::chrono::nanoseconds begin, std::uint64_t number, std::string_view detail = {});
  std::uint64_t all_steps() const { return status_.earlier_steps.load() + status_.steps.load(); }

  const JobParts& job_;
  const JobStatus& status_;
  std::shared_ptr<EventLog> log_;
  std::atomic<std::uint64_t> sub_batches_{0};
  Total waited_{std::chrono::nanoseconds(0)};
  Total at_gate_{std::chrono::nanoseconds(0)};
  Total input_{std::chrono::nanoseconds(0)};
  Total began_{std::chrono::nanoseconds(0)};
  Total ended_{std::chrono::nanoseconds(0)};
  // As last read from the thread.
  mutable Total cpu_{std::chrono::nanoseconds(0)};
  mutable Total core_wait_{std::chrono::nanoseconds(0)};
  // Of the job's own thread.
  std::chrono::nanoseconds step_begin_{0};
  std::chrono::nanoseconds sub_batch_begin_{0};
  SubBatches sub_batches_in_step_;
  std::chrono::nanoseconds input_begin_{0};
  std::chrono::nanoseconds wait_begin_{0};
  std::string wait_reason_;
  int waits_ = 0;  // begun and not ended
};

}  // namespace torchshare
