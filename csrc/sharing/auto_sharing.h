#pragma once

#include <chrono>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/job_id.h"
#include "model/time.h"
#include "sharing/pair_sharing.h"
#include "sharing/shared_job.h"

namespace torchshare {

/// Decides which jobs run on a device, at most two at a time: in order of priority, deadline and arrival, each as soon
/// as PairSharing finds it best beside the running one. Decides again when a job arrives, ends or does a step. While a
/// job that runs alone makes no progress, the other may run.
///
/// Pure: the caller reports events with their times, of any monotonic clock, and carries out the orders.
class AutoSharing {
 public:
  static constexpr std::size_t kMaxTogether = 2;
  enum class Action { kStart, kHold, kRelease, kStay };  ///< kStay: a new plan without changes
  struct Order {
    JobId job;
    Action action;
    std::string reason;  ///< with the numbers behind it
  };
  using Orders = std::list<Order>;  ///< joined to others without allocating

  /// With `max_slowdown`, SlowdownBound keeps that bound, and the primary is never held for a lower job.
  explicit AutoSharing(std::optional<double> max_slowdown) : max_slowdown_(max_slowdown) {}

  /// Throws std::invalid_argument for an invalid profile or number of steps.
  static void check(const SharedJob& job);
  /// See `check`.
  void arrive(JobId id, SharedJob job);
  /// Called when a job that is not automatic has started.
  void start(JobId id, std::chrono::nanoseconds now);
  void step(JobId id, std::chrono::nanoseconds now);
  /// Called when the job has answered a request. From the first answer on, it is no job that another waits for, except
  /// to keep its promise.
  void answer(JobId id, std::chrono::nanoseconds now);
  /// Called when the user suspended or resumed the job.
  void suspend(JobId id, bool suspended, std::chrono::nanoseconds now);
  /// Forgets the job.
  void end(JobId id);
  /// Called before a job's first step if `steps` of the steps that were declared for it are done already.
  void go_on(JobId id, double steps);
  /// Called when the loader's length is known: the job will have done `steps` steps of this run when this pass over
  /// the loader ends, or, with `for_good`, when the job ends.
  void expect(JobId id, double steps, bool for_good);

  /// Starts at most `places` jobs.
  Orders decide(std::chrono::nanoseconds now, std::size_t places = kMaxTogether);
  /// How many jobs and pairs of jobs it knows.
  std::size_t size() const { return runs_.size() + pairs_.size(); }
  /// When to decide again even if nothing happens.
  std::chrono::nanoseconds retry_at() const { return retry_at_; }

 private:
  using State = SharedRun::State;

  /// The first arrived before the second.
  struct Pair {
    JobId first;
    JobId second;
    PairSharing sharing;
    bool let_in = false;  // both run because the chosen one makes no progress
  };

  Pair& pair(JobId first, JobId second);
  void settle(Pair& pair, std::chrono::nanoseconds now);
  bool stalls(const SharedRun& run, std::chrono::nanoseconds now);
  void order(JobId id, bool wanted, const std::string& reason, std::chrono::nanoseconds now);
  std::vector<JobId> in_state(State state, State or_state) const;
  std::vector<JobId> waiting() const;
  void change_who_runs();

  const std::optional<double> max_slowdown_;
  std::map<JobId, SharedRun> runs_;
  std::map<std::pair<JobId, JobId>, Pair> pairs_;
  std::uint64_t epoch_ = 1;  // counts changes of the running jobs
  bool any_automatic_ = false;
  Orders orders_;
  std::chrono::nanoseconds retry_at_ = kNever;
};

}  // namespace torchshare
