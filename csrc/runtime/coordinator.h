#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "device/clock.h"
#include "model/event.h"
#include "policy/start_policy.h"
#include "runtime/timeline.h"

namespace torchshare {

/// Knows the state and the steps of every job, and when a waiting one may start. Any thread.
/// Every change and every decision goes to the timeline.
class Coordinator {
 public:
  Coordinator(Clock& clock, Timeline& timeline);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// A new job, pending. Throws std::invalid_argument for a name that is empty or taken; after `open`, also for a start
  /// condition that cannot come true.
  JobId add(std::string name, Priority priority, StartCondition start);
  /// No more forward references: checks every start condition (see check_starts), now and at every later `add`.
  void open();

  /// Waits, as delayed where need be, until the job may start; then it is running.
  /// Returns false when the job was cancelled instead: then it is cancelled.
  bool wait_to_start(JobId job);
  /// Ends `wait_to_start`, now or later. A job that is still pending is cancelled at once.
  void cancel_start(JobId job);

  /// Moves a job along its life. A move that its life does not have is ignored, for a job may have ended meanwhile:
  /// returns whether the job moved.
  bool move(JobId job, JobState to);
  /// One more step of `job` is done.
  void count_step(JobId job);

  JobState state(JobId job) const;
  std::uint64_t steps(JobId job) const;
  std::vector<std::string> names() const;

  /// Waits until every job has ended, or until `deadline`; returns whether they have.
  bool wait_all(std::chrono::nanoseconds deadline);

 private:
  enum class Wait { kNone, kForStart, kStarted };

  struct Entry {
    std::string name;
    Priority priority;
    StartCondition start;
    std::chrono::nanoseconds arrival;
    JobState state = JobState::kPending;
    std::uint64_t steps = 0;
    Wait wait = Wait::kNone;
    bool start_cancelled = false;
  };

  /// Starts `job` if it waits and may start now. Returns when to look again though nothing else changes.
  std::chrono::nanoseconds decide(JobId job);
  /// A job's state or steps changed: decides for every waiting job here and now, so that a start is at the step it
  /// waits for and not whenever the waiting thread, which may be an idle-priority one, gets to look.
  void decide_waiting();

  std::vector<JobView> views() const;
  bool move_locked(JobId job, JobState to);
  bool all_ended() const;

  Clock& clock_;
  Timeline& timeline_;
  mutable std::mutex mutex_;  // guards every field below
  std::vector<Entry> entries_;
  bool open_ = false;
  int starting_ = 0;  // jobs inside wait_to_start: only they need to hear of steps
  std::condition_variable changed_;
};

}  // namespace torchshare
