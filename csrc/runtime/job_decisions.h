#pragma once

#include <chrono>
#include <optional>

#include "device/clock.h"
#include "gate/gate.h"
#include "runtime/bound_keeper.h"
#include "runtime/deadline_keeper.h"
#include "runtime/job_message.h"
#include "runtime/job_table.h"
#include "runtime/latency_keeper.h"
#include "runtime/message_inbox.h"
#include "runtime/rank_orders.h"
#include "runtime/start_queue.h"
#include "runtime/timeline.h"
#include "sharing/auto_sharing.h"
#include "torchshare/runtime.h"

namespace torchshare {

/// Decides which jobs run, whenever something happened to one, and carries the decisions out: jobs start as the
/// StartQueue finds them due, and start, are held and released as AutoSharing orders; the BoundKeeper and the
/// LatencyKeeper set the pace of lower jobs, the DeadlineKeeper accepts periodic ones. Records every decision in the
/// timeline. Not thread-safe.
///
/// Note [Without memory]
/// A decision that finds no memory is made again a moment later, by `serve_once`; one that was made is carried out and
/// kept without allocating. What happened to a job is always noted: its messages are applied without allocating, and
/// events that cannot be recorded are dropped. So no job waits for ever, and none ends the process.
class JobDecisions {
 public:
  /// Notifies `changed` when jobs' states or orders changed, and wakes the thread behind `inbox` when it has to
  /// `serve_once` earlier than it was told. Throws std::invalid_argument for invalid options.
  JobDecisions(Clock& clock, Timeline& timeline, Gate& gate, const RuntimeOptions& options, MessageInbox& inbox,
               EventCount& changed);

  // See Coordinator.
  JobId add(const NewJob& new_job, Slot& slot, JobStatus& status);
  void withdraw(JobId job);
  void open();
  void cancel_start(JobId job);
  void cancel_starts();
  void give_up(JobId job);
  void obey(const AutoSharing::Order& order);
  std::chrono::nanoseconds serve_once();

  // Around a job's wait for its start.
  void begin_wait(LiveJob& job);
  /// Returns whether the job starts; otherwise it is cancelled.
  bool end_wait(LiveJob& job);
  /// See DeadlineKeeper::add; does nothing with another policy than "edf".
  void make_periodic(JobId job, const PeriodicTask& task);
  void delay(LiveJob& job) { move(job, JobState::kDelayed, clock_.now()); }

  void apply(const JobMessage& message);
  /// Decides for all jobs, so that a job starts at the step it waits for, not when its own thread, possibly of idle
  /// priority, is scheduled. Needed only when time has passed: all else that happens calls it.
  void decide() noexcept;

  JobTable& jobs() { return jobs_; }
  const JobTable& jobs() const { return jobs_; }
  const BoundKeeper& bounds() const { return bounds_; }
  const LatencyKeeper& latencies() const { return latencies_; }
  const DeadlineKeeper& deadlines() const { return deadlines_; }
  RankOrders& ranks() { return ranks_; }

 private:
  void set_wake_interval();
  void arrive(LiveJob& job);
  void obey_early_orders(JobId job);
  void follow_predecessors();
  void follow_predecessors_of(LiveJob& job);
  void count_step(LiveJob& job, const JobMessage& message);
  void count_answer(LiveJob& job, const JobMessage& message);
  void move(LiveJob& job, JobState to, std::chrono::nanoseconds at);
  void share() noexcept;
  template <class Decide>
  void try_to(Decide decide) noexcept;
  void try_to_share();
  void issue(AutoSharing::Orders orders) noexcept;
  void carry_out(const AutoSharing::Order& order) noexcept;
  const char* set_order(LiveJob& job, AutoSharing::Action action) noexcept;

  Clock& clock_;
  Timeline& timeline_;
  Gate& gate_;
  MessageInbox& inbox_;
  EventCount& changed_;
  const bool keeps_bound_;
  const bool keeps_deadlines_;
  JobTable jobs_;
  StartQueue starts_;
  BoundKeeper bounds_;
  LatencyKeeper latencies_;
  DeadlineKeeper deadlines_;
  RankOrders ranks_;
  AutoSharing sharing_;
  bool open_ = false;
  bool any_automatic_ = false;
  bool predecessors_changed_ = false;
  std::chrono::nanoseconds try_again_ = kNever;  // there was no memory to decide
};

}  // namespace torchshare
