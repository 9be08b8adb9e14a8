#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/clock.h"
#include "gate/gate.h"
#include "model/event.h"
#include "planner/auto_sharing.h"
#include "policy/slowdown_bound.h"
#include "policy/start_policy.h"
#include "runtime/timeline.h"

namespace torchshare {

/// What the coordinator is to know of a job when it comes.
struct Admission {
  std::string name;
  Priority priority = Priority::kSecondary;
  StartCondition start = StartNow{};
  std::optional<double> steps = {};  ///< of the whole job, where it is declared
  std::optional<ProfiledJob> profile = {};
};

/// How the primary was held to its bound.
struct BoundStats {
  std::uint64_t windows = 0;  ///< seconds in which others ran beside it
  std::uint64_t windows_inside = 0;
  double alone = 0;  ///< seconds of a step
  double loss = 0;   ///< share of the time in which others may run that it loses to them
  double share = 1;  ///< in which they may run, as last set
};

/// Knows the state and the steps of every job, when a waiting one may start, and which must wait for another's sake: to
/// keep the bound on the primary's slowdown, or because `start="auto"` found it best. Any thread.
/// Every change and every decision goes to the timeline.
class Coordinator {
 public:
  /// Throws std::invalid_argument for a bound that makes no sense.
  Coordinator(Clock& clock, Timeline& timeline, Gate& gate, std::optional<double> max_slowdown = {});
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// A new job, pending; `slot` must outlive its running. Throws std::invalid_argument for a name that is empty or
  /// taken and a profile that makes no sense; after `open`, also for a start condition that cannot come true.
  JobId add(Admission admission, Slot& slot);
  /// No more forward references: checks every start condition (see check_starts), now and at every later `add`.
  void open();

  /// Waits, as delayed where need be, until the job may start; then it is running.
  /// Returns false when the job was cancelled instead: then it is cancelled.
  bool wait_to_start(JobId job);
  /// Ends `wait_to_start` and `wait_released`, now or later. A job that is still pending is cancelled at once.
  void cancel_start(JobId job);

  /// Waits while `job` is held for another's sake and not cancelled. On its own thread.
  void wait_released(JobId job);
  /// The job will have done so many steps when this pass over its loader ends, or for good where there is no other.
  void expect(JobId job, double steps, bool for_good);

  /// Moves a job along its life. A move that its life does not have is ignored, for a job may have ended meanwhile:
  /// returns whether the job moved.
  bool move(JobId job, JobState to);
  /// One more step of `job` is done.
  void count_step(JobId job);

  JobState state(JobId job) const;
  std::uint64_t steps(JobId job) const;
  std::vector<std::string> names() const;
  /// Nothing where the job was not held to a bound.
  std::optional<BoundStats> bound(JobId job) const;

  /// Waits until every job has ended, or until `deadline`; returns whether they have.
  bool wait_all(std::chrono::nanoseconds deadline);

 private:
  enum class Wait { kNone, kForStart, kStarted };

  struct Entry {
    Admission told;
    Slot* slot;
    std::chrono::nanoseconds arrival;
    JobState state = JobState::kPending;
    std::uint64_t steps = 0;
    Wait wait = Wait::kNone;
    bool start_cancelled = false;
    bool sharing_started = false;  // by the word of sharing_
    bool held = false;
    std::chrono::nanoseconds last_step{0};   // when it ended; 0: none since the job's last move
    std::unique_ptr<SlowdownBound> bound{};  // once it was the primary in a runtime with a bound
  };

  /// Starts `job` if it waits and may start now. Returns when to look again though nothing else changes.
  std::chrono::nanoseconds decide(JobId job);
  /// A job's state or steps changed: decides for every waiting job here and now, so that a start is at the step it
  /// waits for and not whenever the waiting thread, which may be an idle-priority one, gets to look.
  void decide_waiting();
  /// Carries out what sharing_ says now.
  void share();
  void tell_sharing(JobId job, JobState from, JobState to);
  void keep_bound(JobId job, std::chrono::nanoseconds now);
  void record_decision(JobId job, std::string what);
  bool has_lower_beside(JobId job) const;
  bool is_outranked(JobId job) const;

  std::vector<JobView> views() const;
  bool move_locked(JobId job, JobState to);
  bool all_ended() const;

  Clock& clock_;
  Timeline& timeline_;
  Gate& gate_;
  const std::optional<double> max_slowdown_;
  mutable std::mutex mutex_;  // guards every field below
  std::vector<Entry> entries_;
  bool open_ = false;
  int starting_ = 0;  // jobs inside wait_to_start: only they need to hear of steps
  AutoSharing sharing_;
  std::condition_variable changed_;
};

}  // namespace torchshare
