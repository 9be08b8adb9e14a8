#pragma once

#include <map>
#include <optional>

#include "cluster/cluster.h"
#include "cluster/cluster_policy.h"

namespace torchshare {

/// The ends of the jobs with deadlines that wait or run, if no other job arrives and all last as long as estimated. A
/// job that would never end is not among them. If the estimates are right, this is what will be, to the last bit: so
/// the policy decides at this instant only if it does so in the cluster, `decides_now`.
std::map<JobId, Seconds> forecast(Cluster cluster, ClusterPolicy& policy, bool decides_now);

/// A job that would end late.
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
