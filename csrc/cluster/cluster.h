#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cluster/gpus.h"
#include "cluster/interference.h"
#include "cluster/user_shares.h"
#include "cluster/waiting_queue.h"
#include "cluster/workload_job.h"
#include "planner/pair_splits.h"

namespace torchshare {

struct ClusterOptions {
  int gpus = 64;
  int gpus_per_node = 4;
  double gpu_memory_gib = 0;                 ///< per GPU; 0: memory is ignored
  Seconds restart_cost = 10;                 ///< time that a resumed job holds its GPUs before it makes progress
  bool durations_known = true;               ///< false: policies know a job's service so far, not its remaining time
  int largest_split = 8;                     ///< maximum number of sub-batches of a sharing job: 1, 2, 4, ..., this
  bool keep_splits = false;                  ///< a running job keeps its sub-batches until it starts again
  bool one_gang_beside = false;              ///< a job of several GPUs shares with at most one other such job
  Seconds checkpoint_every = kNeverVirtual;  ///< work between the checkpoints of a job, after its start
  bool rank_by_path = false;                 ///< pair-srsf ranks a job with the longest chain of jobs that waits for it
  Seconds fair_half_life = 0;                ///< of the use by which users come first; 0: all users are one
  bool record_spans = false;
};

/// An interval in which a job ran, from its start to its end or suspension.
struct Span {
  JobId job;
  Seconds begin;
  Seconds end;
  std::vector<GpuId> gpus;
};

/// What a job has done so far.
struct JobProgress {
  Seconds work_left = 0;
  Seconds restart_left = 0;
  Seconds run = 0;
  int preemptions = 0;
  std::optional<Rank> rank;       ///< while it waits; empty: as the policy ranks it when it is restored
  bool held = false;              ///< it has arrived and is held back
  int sub_batches = 1;            ///< while it runs
  bool deadline_dropped = false;  ///< see `drop_deadline`
};

/// A held job has arrived and is kept out of the queue. A rejected one will never run.
enum class JobPhase : std::uint8_t { kToCome, kHeld, kWaiting, kRunning, kEnded, kRejected };

/// The state of a job in the cluster. Times and work are as of `since`.
struct ClusterJob {
  WorkloadJob asked;
  Seconds estimate = 0;  ///< of the duration; the only duration that policies see
  JobPhase phase = JobPhase::kToCome;
  bool pinned = false;  ///< it cannot be suspended
  bool deadline_dropped = false;
  std::vector<GpuId> gpus;  ///< the GPUs it runs on
  int sub_batches = 1;
  int shared_gpus = 0;  ///< number of its GPUs that have a partner
  double speed = 0;     ///< work per second; 1: alone, in whole batches
  Seconds started = 0;  ///< time of its last start
  Seconds since = 0;
  Seconds work_left = 0;             ///< in seconds alone
  Seconds saved_left = 0;            ///< `work_left` at its last start, as of which it can resume
  Seconds restart_left = 0;          ///< until work continues
  Seconds eligible = kNeverVirtual;  ///< when it had arrived and its predecessors had ended
  Seconds waited = 0;                ///< since it was eligible
  Seconds run = 0;
  Seconds shared = 0;  ///< part of `run` beside a partner
  Seconds ended = kNeverVirtual;
  int preemptions = 0;
  int losses = 0;         ///< those preemptions in which it went back
  int fruitless = 0;      ///< the last of them, without a checkpoint between
  Seconds lost_work = 0;  ///< that it did and went back before
  Rank rank;              ///< its position in the queue while it waits
  std::size_t place_in_running = 0;
  WaitingQueue::Kind kind = 0;
};

/// A cluster at one instant of virtual time. Policies read and change it.
class Cluster {
 public:
  /// `estimates[i]` is the duration of `jobs[i]` as known to policies. Throws std::invalid_argument.
  Cluster(const ClusterOptions& options, const Interference& interference, const std::vector<WorkloadJob>& jobs,
          const std::vector<Seconds>& estimates);

  const ClusterOptions& options() const { return options_; }
  Seconds now() const { return now_; }
  const ClusterJob& job(JobId job) const { return jobs_[job]; }
  std::size_t jobs() const { return jobs_.size(); }
  const Gpus& gpus() const { return gpus_; }
  const WaitingQueue& waiting() const { return waiting_; }
  WaitingQueue& waiting() { return waiting_; }
  const std::vector<JobId>& running() const { return running_; }
  /// The held jobs, in order of arrival.
  const std::vector<JobId>& held() const { return held_; }

  /// A policy's estimate of a job's remaining time alone. An estimate that proved too short is doubled until it is long
  /// enough. If durations are unknown: the time the job has run, because old jobs tend to last longest, rounded to
  /// powers of four times five minutes.
  Seconds remaining(JobId job) const;
  /// GPU-seconds that a job has used.
  double attained(JobId job) const { return run_time(job) * jobs_[job].asked.gpus; }
  Seconds run_time(JobId job) const;
  /// The remaining time on all its GPUs, in GPU seconds.
  Seconds remaining_service(JobId job) const { return remaining(job) * jobs_[job].asked.gpus; }
  /// The estimated GPU-seconds of the longest chain of jobs that waits for its end; 0 unless `set_behind`.
  double service_behind(JobId job) const { return service_behind_.empty() ? 0 : service_behind_[job]; }
  /// The time at which it ends if nothing changes.
  Seconds ends_at(JobId job) const;

  /// The time by which a job must have ended; kNeverVirtual: it has no deadline.
  Seconds due(JobId job) const { return jobs_[job].asked.arrival + jobs_[job].asked.deadline; }
  bool has_deadline(JobId job) const { return jobs_[job].asked.deadline < kNeverVirtual; }
  /// Whether an end at this time keeps the job's deadline, to within rounding.
  bool in_time(JobId job, Seconds end) const { return end <= due(job) * (1 + kRounding); }
  /// The number of jobs with a deadline that wait or run.
  int open_deadlines() const { return open_deadlines_; }

  /// The place of a job's user in the order of users, the one with the least use first; 0 if all are one.
  int user_place(JobId job) const {
    return places_.empty() ? 0 : places_[static_cast<std::size_t>(jobs_[job].asked.user)];
  }
  /// Whether the user of `job` has had so much more than that of `other` that it must make room. A factor of two, so
  /// that users do not suspend each other's jobs in turn.
  bool user_has_had_more(JobId job, JobId other) const {
    return users_->use(user_of(job)) > 2 * users_->use(user_of(other));
  }

  int models() const { return interference_.models(); }
  /// The interference ratio of `job` beside `partner`.
  double ratio(JobId job, JobId partner) const {
    return interference_.ratio(jobs_[job].asked.model, jobs_[partner].asked.model);
  }
  bool may_share(JobId job, JobId partner) const {
    const int group = jobs_[job].asked.group;
    return group != kAlone && group == jobs_[partner].asked.group && ratio(job, partner) < Interference::kNeverShares &&
           ratio(partner, job) < Interference::kNeverShares;
  }
  /// The sub-batches with the least average completion time of the two (`best_splits`) with which waiting job `job`
  /// fits beside running job `partner`, which has at least those it needs beside others. Empty if they never fit or
  /// share.
  std::optional<PairSplits> splits_beside(JobId job, JobId partner) const;
  /// Step time of a job in `sub_batches` sub-batches / step time in whole batches.
  double split_cost(JobId job, int sub_batches) const { return jobs_[job].asked.split.time(sub_batches); }

  /// The same once the job, which shares in that many sub-batches, has no partner any more.
  double cost_without_partner(JobId job, int sub_batches) const {
    return options_.keep_splits ? split_cost(job, sub_batches) : 1;
  }

  /// `remaining` of a running job, without a partner, if it does not start again.
  Seconds remaining_alone(JobId job) const {
    return remaining(job) * cost_without_partner(job, jobs_[job].sub_batches);
  }

  /// Starts a waiting job on as many GPUs as it requested, each with at most one job. The other jobs there are split as
  /// far as they must to fit beside it.
  void start(JobId job, std::vector<GpuId> gpus, int sub_batches = 1);
  /// Suspends a running job; it waits again, at `rank`. Policies do not suspend pinned jobs.
  void suspend(JobId job, Rank rank);

  /// Takes the work since its last checkpoint back from a running job, which is suspended next. It has a checkpoint as
  /// of its last start, too.
  void go_back(JobId job);

  const std::vector<Span>& spans() const { return spans_; }

  // For the simulator and the live scheduler.
  void set_behind(std::vector<double> service) { service_behind_ = std::move(service); }
  void advance(Seconds now) {
    if (users_) {
      count_use(now - now_);
    }
    now_ = now;
  }
  /// Before the policy decides: puts users in the order of their use.
  void order_users() {
    if (users_) {
      places_ = users_->places();
      waiting_.set_places(places_);
    }
  }
  /// Lets a job into the queue, which is eligible from now on.
  void arrive(JobId job, Rank rank);
  /// Keeps a job that arrives out of the queue, until `arrive`.
  void hold(JobId job);
  void reject(JobId job) { jobs_[job].phase = JobPhase::kRejected; }
  /// For forecasts: jobs last as long as policies estimate.
  void trust_estimates();
  /// Ends a job that runs, waits or is held.
  void end(JobId job);

  // For the live scheduler: jobs and GPUs that were not known at the beginning.
  /// Throws std::invalid_argument.
  JobId add(const WorkloadJob& job, Seconds estimate);
  /// From now on, a job that has not arrived is one without a deadline.
  void drop_deadline(JobId job) {
    jobs_[job].asked.deadline = kNeverVirtual;
    jobs_[job].deadline_dropped = true;
  }
  void set_pinned(JobId job, bool pinned) { jobs_[job].pinned = pinned; }
  /// Changes the group of a job. Its present partner keeps running.
  void set_group(JobId job, int group);
  JobProgress progress(JobId job) const;
  /// Sets the progress of a job that was in another cluster.
  void restore(JobId job, const JobProgress& progress);
  /// Takes the last `seconds` of work back from a running job, which did nothing in them.
  void take_back(JobId job, Seconds seconds);
  void add_node() { gpus_.add_node(); }
  /// The GPU must have no jobs.
  void set_usable(GpuId gpu, bool usable) { gpus_.set_usable(gpu, usable); }
  int add_model() { return interference_.add_model(); }
  /// Throws std::invalid_argument.
  void set_ratio(int model, int partner, double ratio);
  /// Jobs whose end has changed since the last call.
  std::vector<JobId> take_changed() { return std::exchange(changed_, {}); }

 private:
  static constexpr double kRounding = 1e-9;  // of times, relative

  void check(const WorkloadJob& job, Seconds estimate, std::size_t index) const;
  WaitingQueue::Kind kind_of(WorkloadJob job);
  std::size_t user_of(JobId job) const { return static_cast<std::size_t>(jobs_[job].asked.user); }
  void count_use(Seconds passed);
  void enqueue(JobId job, Rank rank);
  void settle(ClusterJob& job);
  void leave(JobId job);
  /// Updates the speed of these jobs.
  void set_speeds(std::vector<JobId> jobs, JobId started = kNobody);
  double memory(const ClusterJob& job, int sub_batches) const {
    return job.asked.memory_gib * job.asked.split.memory(sub_batches);
  }
  int largest_split(const ClusterJob& job) const { return std::min(options_.largest_split, job.asked.split.most); }
  /// Returns the sizes in which `job` may run beside `partner`, which it writes to the front of `sizes`.
  std::span<const SplitSize> sizes_beside(JobId job, JobId partner, std::span<SplitSize> sizes) const;
  bool fits_beside_partners(JobId job, int sub_batches) const;
  /// The fewest sub-batches with which a running job fits beside its partners.
  int fewest_sub_batches(JobId job) const;

  ClusterOptions options_;
  Interference interference_;
  std::vector<ClusterJob> jobs_;
  Gpus gpus_;
  WaitingQueue waiting_;
  std::optional<UserShares> users_;
  std::vector<int> places_;  // of users, as of the last decision
  std::vector<JobId> running_;
  std::vector<JobId> held_;
  std::vector<double> service_behind_;
  std::vector<JobId> changed_;
  std::vector<Span> spans_;
  Seconds now_ = 0;
  int open_deadlines_ = 0;
};

}  // namespace torchshare
