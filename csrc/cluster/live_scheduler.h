#pragma once

#include <memory>
#include <vector>

#include "cluster/cluster.h"
#include "cluster/cluster_policy.h"

namespace torchshare {

/// A cluster policy beside real jobs: the caller says what happened and when, and is told who starts and who stops.
class LiveScheduler {
 public:
  struct Orders {
    std::vector<JobId> suspend;  ///< first
    std::vector<JobId> start;    ///< or resume
  };

  LiveScheduler(Cluster cluster, std::unique_ptr<ClusterPolicy> policy);

  /// Seconds since the beginning; throws std::invalid_argument where time goes back or the job is not where it should
  /// be.
  Orders arrive(JobId job, Seconds now);
  Orders end(JobId job, Seconds now);

 private:
  void advance(Seconds now);
  Orders decide();

  Cluster cluster_;
  std::unique_ptr<ClusterPolicy> policy_;
  std::vector<bool> running_;  // as the caller knows it
};

}  // namespace torchshare
