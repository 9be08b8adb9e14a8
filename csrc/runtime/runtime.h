#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine.h"
#include "runtime/job.h"

namespace torchshare {

struct RuntimeOptions {
  std::string policy = "priority";                            ///< one of gate_policy_names()
  GatePolicyOptions gate = {};                                ///< `run_ahead`: where the device runs behind the host
  std::optional<std::chrono::nanoseconds> shortest_gap = {};  ///< worth filling; default: measured, see WakeCost
  bool device_priority = true;                                ///< false: the gate alone keeps the order
  std::optional<double> max_slowdown = {};                    ///< of the primary: step time / alone - 1
  std::optional<double> secondary_share = {};  ///< of the time, in which jobs that another outranks may run
  std::size_t timeline_capacity = 1'000'000;   ///< events
};

/// Runs jobs together on one device. Any thread, but not a job's own.
class Runtime {
 public:
  /// Throws std::invalid_argument for options that make no sense, std::logic_error inside a job.
  explicit Runtime(std::shared_ptr<Device> device, const RuntimeOptions& options = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Adds a job. Before `start` it stays pending; afterwards it starts by its own condition.
  std::shared_ptr<Job> submit(JobSpec spec, Job::Body body, std::unique_ptr<Host> host = std::make_unique<Host>());
  /// Checks every start condition, then lets the jobs go. Again is a no-op.
  void start();
  /// Waits until every job has ended, for at most `timeout`; returns whether they have.
  bool wait(std::chrono::nanoseconds timeout);
  void cancel_all();
  /// Cancels what has not ended and joins the threads. A job that is blocked outside torch for longer than `patience`
  /// is given up: it counts as cancelled, its thread is left alone, and its name is returned.
  std::vector<std::string> close(std::chrono::nanoseconds patience);

  const Engine& engine() const { return *engine_; }

 private:
  struct Member {
    std::shared_ptr<Job> job;
    Job::Body body;  // until the thread has it
    std::thread thread;
  };

  std::vector<std::shared_ptr<Job>> jobs();
  static void launch(Member& member);

  const std::shared_ptr<Engine> engine_;
  const int former_threads_;
  std::mutex mutex_;  // guards every field below
  std::vector<Member> members_;
  bool started_ = false;
  bool closed_ = false;
};

}  // namespace torchshare
