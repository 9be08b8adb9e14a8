#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "torchshare/profile.h"
#include "torchshare/values.h"

namespace torchshare {

/// The user's description of a job.
struct JobSpec {
  std::string name;
  Priority priority = Priority::kSecondary;
  std::string start = "now";  ///< or "auto", "after:<job>", "step:<k>", or a number of seconds
  /// Jobs of the runtime whose ends it waits for: "<job>" or "any:<job>", any end; "ok:<job>", it must finish. `start`
  /// applies when they have ended. If one that must finish does not, the job is cancelled.
  std::vector<std::string> after = {};
  int threads = 1;                      ///< intra-op threads, at least 1
  std::uint64_t seed = 0;               ///< of the job's own random generator
  std::optional<double> steps = {};     ///< of the whole job, if declared
  std::optional<std::string> slo = {};  ///< promise about the latencies of its requests, such as "p99<20ms", if any
  std::optional<std::chrono::nanoseconds> period = {};  ///< between two releases, for a periodic job
  /// With a period: of a unit, from its release; default: the period. Without: of the job, from its submission.
  std::optional<std::chrono::nanoseconds> deadline = {};
  std::optional<std::chrono::nanoseconds> unit_time = {};  ///< that a unit takes alone, at most; default: measured
  std::optional<ProfiledJob> profile = {};
  bool meter_memory = false;                       ///< count the job's memory even without a budget
  std::optional<std::int64_t> memory_budget = {};  ///< bytes of tensors on the device
  bool cache_memory = true;                        ///< keep large blocks that its tensors free, on the CPU
  std::optional<int> sms = {};                     ///< streaming multiprocessors that the job may use
  bool record_ops = false;                         ///< time every op
  std::vector<OpProfile> ops = {};                 ///< from an earlier measurement
};

/// The progress of a job so far.
struct JobStats {
  std::uint64_t steps = 0;          ///< of this run, as all that follows
  std::uint64_t earlier_steps = 0;  ///< of earlier runs, whose checkpoint it goes on from
  std::uint64_t sub_batches = 0;    ///< of its steps
  std::uint64_t ops = 0;
  std::chrono::nanoseconds waited{0};     ///< spent at the gate, suspended, asleep or in collectives
  std::chrono::nanoseconds input{0};      ///< spent waiting for its loader
  std::chrono::nanoseconds cpu{0};        ///< processor time of its thread
  std::chrono::nanoseconds core_wait{0};  ///< spent ready to run, while other threads had the cores
  std::chrono::nanoseconds ran{0};        ///< from its start to its end, or until now
  std::int64_t memory_peak = 0;           ///< bytes of tensors, if metered
  std::int64_t memory_cached = 0;         ///< bytes of freed blocks that were kept, at most
  /// From the job's deadline to its end, or until now; negative before the deadline. Empty without one, and for a job
  /// that has ended before it began.
  std::optional<std::chrono::nanoseconds> lateness = {};
};

/// One training run: a thread with its own priority, intra-op threads and random state. Made by Runtime::submit.
class Job {
 public:
  using Body = std::function<void(Job&)>;

  Job() = default;
  virtual ~Job() = default;
  Job(const Job&) = delete;  // its thread refers to it
  Job& operator=(const Job&) = delete;

  virtual const JobSpec& spec() const = 0;
  virtual JobState state() const = 0;
  virtual JobStats stats() const = 0;
  /// Why the job failed, or was cancelled before its start; empty unless it did, or a user cancelled it.
  virtual std::string error() const = 0;

  // From any thread. Each takes effect within one op.
  virtual void suspend() = 0;
  virtual void resume() = 0;
  virtual void cancel() = 0;
  virtual bool cancel_requested() const = 0;

  // On the job's own thread.
  /// Waits while the job is suspended; throws Cancelled if it is cancelled.
  virtual void yield_point() = 0;
  /// Like std::this_thread::sleep_for, but a cancel ends it, and lower jobs may run meanwhile.
  virtual void sleep(std::chrono::nanoseconds duration) = 0;
  /// Called around the loader's work: while the job waits for input, lower jobs may enter at once.
  virtual void begin_input() = 0;
  virtual void end_input() = 0;
  /// Declares that after `more` further steps this pass over the loader ends, or, with `for_good`, the job.
  virtual void expect_steps(std::uint64_t more, bool for_good) = 0;
  virtual void begin_step() = 0;
  virtual void end_step() = 0;
  virtual void begin_sub_batch() = 0;
  virtual void end_sub_batch() = 0;
  /// Waits for the job's own work on the device.
  virtual void synchronize() = 0;
};

}  // namespace torchshare
