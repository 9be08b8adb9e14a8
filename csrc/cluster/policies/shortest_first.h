#pragma once

#include "cluster/placing.h"

namespace torchshare {

/// Shortest job first, without preemption; jobs that do not fit are skipped.
class ShortestFirst : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override { return {0, cluster.remaining(job)}; }
  void schedule(Cluster& cluster) override {
    cluster.waiting().offer([&](JobId job) { return start_alone(cluster, job) || start_shared(cluster, job); });
  }

 private:
  /// Called for a job that does not fit alone.
  virtual bool start_shared(Cluster& cluster, JobId job) const = 0;
};

}  // namespace torchshare
