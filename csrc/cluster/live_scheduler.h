#pragma once

#include <map>
#include <memory>
#include <vector>

#include "cluster/cluster.h"
#include "cluster/cluster_policy.h"
#include "cluster/forecast.h"

namespace torchshare {

/// Applies a cluster policy to real jobs: the caller reports events with their times, and gets the jobs to start and to
/// suspend. The same events give the same orders.
class LiveScheduler {
 public:
  struct Orders {
    std::vector<JobId> suspend;  ///< before `start`
    std::vector<JobId> start;    ///< or resume; a job in both moves to other GPUs, or gets other sub-batches
  };

  LiveScheduler(Cluster cluster, std::unique_ptr<ClusterPolicy> policy);

  const Cluster& cluster() const { return cluster_; }
  /// Adds a job that arrives later. Throws std::invalid_argument.
  JobId add(const WorkloadJob& job, Seconds estimate);

  struct MissWith {
    std::size_t index;  ///< of the new job
    Miss miss;
  };
  /// The first of these jobs that would make one late if they arrived now, one after the other, by the forecast of a
  /// policy that keeps deadlines. All have deadlines, and are estimated to last their `duration`. Their own numbers are
  /// the next ones; new models have the next numbers, too. `decides_now`: whether others arrive at this instant.
  /// Changes nothing. Throws std::invalid_argument.
  std::optional<MissWith> miss_with(const std::vector<WorkloadJob>& jobs, Seconds now, bool decides_now) const;

  /// Times in seconds since the beginning. Throws std::invalid_argument if time decreases or the job is in another
  /// phase.
  ///
  /// Lets jobs arrive, those with deadlines first, and decides about them together. Rejects none: a job whose deadline
  /// matters is asked about with `miss_with` first.
  Orders arrive(const std::vector<JobId>& jobs, Seconds now);
  Orders arrive(JobId job, Seconds now) { return arrive(std::vector{job}, now); }
  /// Lets jobs arrive that have waited for others. One that cannot meet its deadline any more, or not without making
  /// another job late, has none from now on.
  Orders release(const std::vector<JobId>& jobs, Seconds now);
  /// Ends a job that runs, waits or is held, and releases those that have waited for it.
  Orders end(JobId job, Seconds now, const std::vector<JobId>& successors = {});
  /// Removes a GPU that can no longer be used. Its jobs wait again; their work after `heard` does not count.
  Orders lose(GpuId gpu, Seconds heard, Seconds now);
  /// Adds a GPU that can be used again, or for the first time.
  Orders gain(GpuId gpu, Seconds now);
  /// Called at `look_again()`.
  Orders look(Seconds now);
  Seconds look_again() const { return policy_->look_again(cluster_); }

  /// Appends a node whose GPUs are yet to be gained.
  void add_node() { cluster_.add_node(); }
  JobProgress progress(JobId job) const;
  /// Adds a job that has arrived in an earlier scheduler: it waits, or runs on `gpus`. Decides nothing.
  /// Throws std::invalid_argument as `arrive` does.
  void restore(JobId job, const JobProgress& progress, std::vector<GpuId> gpus, Seconds now);
  // The following apply from the next event on.

  /// A pinned job is not suspended.
  void set_pinned(JobId job, bool pinned);
  void set_group(JobId job, int group);
  int add_model() { return cluster_.add_model(); }
  /// Throws std::invalid_argument, also if time decreases.
  void set_ratio(int model, int partner, double ratio, Seconds now);

 private:
  void check_gpu(GpuId gpu) const;
  void check_job(JobId job) const;
  void check_to_come(const std::vector<JobId>& jobs) const;
  void advance(Seconds now);
  void enter(const std::vector<JobId>& jobs, bool decides_now, bool drop_deadlines);
  Orders decide();

  Cluster cluster_;
  std::unique_ptr<ClusterPolicy> policy_;
  struct Place {
    std::vector<GpuId> gpus;
    int sub_batches;
    bool operator==(const Place&) const = default;
  };
  std::map<JobId, Place> told_;  // of running jobs, as last reported to the caller
};

}  // namespace torchshare
