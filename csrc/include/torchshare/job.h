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

/// What the user says of a job.
struct JobSpec {
  std::string name;
  Priority priority = Priority::kSecondary;
  StartCondition start = StartNow{};
  int threads = 1;                   ///< intra-op threads, at least 1
  std::uint64_t seed = 0;            ///< of the job's own random generator
  std::optional<double> steps = {};  ///< of the whole job, if declared
  std::optional<ProfiledJob> profile = {};
  bool meter_memory = false;                       ///< count the job's memory even without a budget
  std::optional<std::int64_t> memory_budget = {};  ///< bytes of tensors on the device
  std::optional<int> sms = {};                     ///< streaming multiprocessors that the job may use
  bool record_ops = false;                         ///< time every op
  std::vector<OpProfile> ops = {};                 ///< measured before
};

/// What a job has done so far.
struct JobStats {
  std::uint64_t steps = 0;
  std::uint64_t sub_batches = 0;
  std::uint64_t ops = 0;
  std::chrono::nanoseconds waited{0};  ///< at the gate, or suspended
  std::chrono::nanoseconds input{0};   ///< for its loader
  std::chrono::nanoseconds ran{0};     ///< from running to its end, or to now
  std::int64_t memory_peak = 0;        ///< bytes of tensors, if metered
};

/// One training run: a thread with a priority, intra-op threads and random state of its own. Made by Runtime::submit.
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
  /// Why the job failed; empty unless it did.
  virtual std::string error() const = 0;

  // From any thread. Each takes effect within one op.
  virtual void suspend() = 0;
  virtual void resume() = 0;
  virtual void cancel() = 0;
  virtual bool cancel_requested() const = 0;

  // On the job's own thread.
  /// A place to stop between ops: waits while suspended; throws Cancelled if the job is cancelled.
  virtual void checkpoint() = 0;
  /// As std::this_thread::sleep_for, but a cancel ends it, and lower jobs may use the time.
  virtual void sleep(std::chrono::nanoseconds duration) = 0;
  /// Around the loader's work: the job waits for its input, so lower jobs may enter at once.
  virtual void begin_input() = 0;
  virtual void end_input() = 0;
  /// `more` steps from now on, this pass over the loader ends; `for_good`: the job ends.
  virtual void expect_steps(std::uint64_t more, bool for_good) = 0;
  virtual void begin_step() = 0;
  virtual void end_step() = 0;
  virtual void begin_sub_batch() = 0;
  virtual void end_sub_batch() = 0;
  /// Waits for the job's own work on the device.
  virtual void synchronize() = 0;
};

}  // namespace torchshare
