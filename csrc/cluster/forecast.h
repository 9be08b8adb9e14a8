#pragma once

#include <optional>

#include "cluster/cluster.h"
#include "cluster/cluster_policy.h"

namespace torchshare {

/// A job that would end late. A forecast runs a copy of the cluster on, by the policies' estimates, without further
/// arrivals.
struct Miss {
  JobId job;
  Seconds end;
};

/// What a job that arrives now would make late: itself, or the first of those that would else be in time.
/// `decides_now`: whether the policy decides at this instant without that job, too.
std::optional<Miss> miss_with(const Cluster& cluster, ClusterPolicy& policy, JobId job, bool decides_now);

/// Lets a job in that arrives. If the policy keeps deadlines, one that would make a job late is rejected, or held if it
/// has no deadline itself. Returns whether it waits now. `decides_now` as above.
bool admit(Cluster& cluster, ClusterPolicy& policy, JobId job, bool decides_now);

/// Lets those held jobs in that make none late any more. Called when a job with a deadline has ended.
void admit_held(Cluster& cluster, ClusterPolicy& policy);

}  // namespace torchshare
