#pragma once

#include <memory>
#include <vector>

#include "cluster/cluster.h"
#include "cluster/cluster_policy.h"

namespace torchshare {

/// Applies a cluster policy to real jobs: the caller reports events with their times, and gets the jobs to start and to
/// suspend.
class LiveScheduler {
 public:
  struct Orders {
    std::vector<JobId> suspend;  ///< before `start`
    std::vector<JobId> start;    ///< or resume
  };

  LiveScheduler(Cluster cluster, std::unique_ptr<ClusterPolicy> policy);

  /// Times in seconds since the beginning. Throws std::invalid_argument if time decreases or the job is in another
  /// phase.
  Orders arrive(JobId job, Seconds now);
  Orders end(JobId job, Seconds now);

 private:
  void advance(Seconds now);
  Orders decide();

  Cluster cluster_;
  std::unique_ptr<ClusterPolicy> policy_;
  std::vector<bool> running_;  // as last reported to the caller
};

}  // namespace torchshare
