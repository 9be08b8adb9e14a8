#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "torchshare/device.h"
#include "torchshare/job.h"

namespace torchshare {

class JobThreads;
class LanguageBinding;
class RuntimeJob;
struct RuntimeState;

struct RuntimeOptions {
  std::string policy = "priority";  ///< one of gate_policy_names()
  GatePolicyOptions gate = {};      ///< `run_ahead`: on an asynchronous device only
  std::optional<std::chrono::nanoseconds> shortest_gap =
      {};  ///< shortest gap worth filling; default: measured, see WakeCost
  DevicePriority device_priority = DevicePriority::kAuto;
  std::optional<double> max_slowdown = {};         ///< bound on the primary's step time / step time alone - 1
  std::optional<double> secondary_share = {};      ///< fraction of the time in which jobs that another outranks may run
  std::optional<std::size_t> max_concurrent = {};  ///< most jobs that run at once; the others wait in a queue
  std::size_t timeline_capacity = 1'000'000;       ///< events per job
  std::size_t keep = 20;                           ///< jobs that have ended and whose events are kept, the last ones
};

/// Runs jobs together on one device. Any thread, but not a job's own; a forked child cannot use its parent's.
class Runtime {
 public:
  /// Throws std::invalid_argument for invalid options, std::logic_error inside a job.
  explicit Runtime(std::shared_ptr<Device> device, const RuntimeOptions& options = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;  // its jobs' threads are its own
  Runtime& operator=(const Runtime&) = delete;

  /// Adds a job. It stays pending until `start`; in a started runtime, its start condition applies at once.
  std::shared_ptr<Job> submit(JobSpec spec, Job::Body body);
  /// The same for a job whose body is written in another language than C++. `replaces` is a job that is about to end:
  /// the new job may have its name, and jobs that wait for its end wait for that of the new job.
  std::shared_ptr<RuntimeJob> submit(JobSpec spec, Job::Body body, std::unique_ptr<LanguageBinding> language,
                                     const RuntimeJob* replaces = nullptr);
  /// Checks every start condition, then starts the jobs. Throws std::runtime_error if a thread cannot be created: jobs
  /// without a thread stay pending, and another call tries again. Otherwise further calls do nothing.
  void start();
  /// Waits until every job has ended, for at most `timeout`; returns whether they have.
  bool wait(std::chrono::nanoseconds timeout);
  void cancel_all();
  /// Cancels jobs that have not ended. From then on, no job is added or started.
  void begin_close();
  /// Cancels jobs that have not ended and joins their threads. Gives up a job that is blocked outside torch for longer
  /// than `patience`: it counts as cancelled, its thread is left behind, and its name is returned.
  std::vector<std::string> close(std::chrono::nanoseconds patience);

  /// The state that its jobs share; for the bindings.
  RuntimeState& state() const {
    check_process();
    return *state_;
  }

 private:
  void check_process() const;
  void start_helpers();
  void stop_helpers();

  const std::shared_ptr<RuntimeState> state_;
  const int former_threads_;
  const pid_t process_;
  const std::shared_ptr<JobThreads> jobs_;
  std::mutex mutex_;  // guards every field below
  std::thread coordinator_;
  std::thread stall_watch_;
  bool started_ = false;
  bool closed_ = false;
};

}  // namespace torchshare
