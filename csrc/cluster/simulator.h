#pragma once

#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "cluster/cluster.h"
#include "cluster/cluster_policy.h"
#include "cluster/dependencies.h"
#include "cluster/failures.h"

namespace torchshare {

/// The usage of the cluster from `time` on.
struct Usage {
  Seconds time;
  int busy;           ///< GPUs with a job
  int shared;         ///< GPUs with two
  std::size_t queue;  ///< waiting jobs
};

struct SimulatorOptions {
  Predecessors after = {};  ///< of each job; empty: no job waits for another
  Failures failures = {};
  bool record_usage = false;  ///< keep the usage of the cluster after every step
};

/// Simulates a policy on a workload in virtual time: advances to the next event, lets the policy decide, and schedules
/// the ends of running jobs. Deterministic. One thread at a time.
class Simulator {
 public:
  /// Throws std::invalid_argument for options that do not fit the cluster.
  Simulator(Cluster cluster, std::unique_ptr<ClusterPolicy> policy, const SimulatorOptions& options = {});

  /// Advances to the next instant; false if every job has ended or was rejected.
  /// Throws std::logic_error if jobs wait and no event is pending; std::runtime_error if the reason are GPUs that do
  /// not return, and if a job was interrupted a thousand times since its last checkpoint.
  bool step();

  const Cluster& cluster() const { return cluster_; }
  /// The number of jobs that have ended or were rejected.
  std::size_t ended() const { return ended_; }
  /// GPU-seconds in which a GPU had at least one job.
  double busy_gpu_seconds() const { return busy_gpu_seconds_; }
  /// GPU-seconds in which a GPU was away.
  double away_gpu_seconds() const { return away_gpu_seconds_; }
  const std::vector<Usage>& usage() const { return usage_; }

 private:
  enum class What { kEnd, kReturn, kFailure, kArrival, kLook };  // in this order at one instant
  struct Event {
    Seconds time;
    What what;
    JobId job;  // of kReturn: the GPU; of kFailure and kLook: kNobody
    bool operator>(const Event& other) const {
      return std::tie(time, what, job) > std::tie(other.time, other.what, other.job);
    }
  };

  void advance(Seconds now);
  /// Returns whether the event changed anything; `changed`: others of this instant have.
  bool handle(const Event& event, bool changed);
  /// A job that waits for one that was rejected can never start, and is rejected, too.
  void count_rejected(JobId job);
  /// Fetches the next outage, if there is one.
  void plan_failure();
  void fail();
  void lose(GpuId gpu);
  void plan_next();

  Cluster cluster_;
  std::unique_ptr<ClusterPolicy> policy_;
  Dependencies dependencies_;
  Failures failures_;
  Outage outage_;             // the next
  std::vector<int> outages_;  // of each GPU, now
  const bool record_usage_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Seconds next_look_ = kNeverVirtual;
  bool deadline_ended_ = false;  // at this instant
  std::size_t ended_ = 0;
  double busy_gpu_seconds_ = 0;
  double away_gpu_seconds_ = 0;
  std::vector<Usage> usage_;
};

}  // namespace torchshare
