#include "cluster/forecast.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace torchshare {
namespace {

/// Ends the running jobs whose time has come, in the order of the simulator; false if there are none.
bool end_due(Cluster& cluster) {
  std::vector<JobId> due;
  for (const JobId job : cluster.running()) {
    if (cluster.ends_at(job) <= cluster.now()) {
      due.push_back(job);
    }
  }
  std::sort(due.begin(), due.end());
  for (const JobId job : due) {
    if (cluster.ends_at(job) <= cluster.now()) {  // the end of its partner may have changed it
      cluster.end(job);
    }
  }
  return !due.empty();
}

/// Advances until no job with a deadline is open, if all last as long as estimated and none arrives. If the estimates
/// are right, this is what will be, to the last bit: so the policy decides at the first instant only if it does so in
/// the real cluster, `decides_now`.
void run_ahead(Cluster& cluster, ClusterPolicy& policy, bool decides_now) {
  cluster.trust_estimates();
  for (;;) {
    if (end_due(cluster) || decides_now) {
      cluster.order_users();
      policy.schedule(cluster);
    }
    decides_now = true;
    Seconds next = policy.look_again(cluster);
    for (const JobId job : cluster.running()) {
      next = std::min(next, cluster.ends_at(job));
    }
    if (cluster.open_deadlines() == 0 || next == kNeverVirtual) {
      return;
    }
    cluster.advance(std::max(cluster.now(), next));
  }
}

/// The jobs that will end late, and when; kNeverVirtual: never.
std::map<JobId, Seconds> late(Cluster cluster, ClusterPolicy& policy, bool decides_now) {
  const Seconds begin = cluster.now();
  run_ahead(cluster, policy, decides_now);
  std::map<JobId, Seconds> found;
  for (JobId job = 0; job < cluster.jobs(); ++job) {
    const ClusterJob& entry = cluster.job(job);
    const bool has_arrived = entry.phase != JobPhase::kToCome && entry.phase != JobPhase::kRejected;
    if (has_arrived && entry.ended >= begin && !cluster.in_time(job, entry.ended)) {
      found[job] = entry.ended;
    }
  }
  return found;
}

}  // namespace

std::optional<Miss> miss_with(const Cluster& cluster, ClusterPolicy& policy, JobId job, bool decides_now) {
  if (!cluster.has_deadline(job) && cluster.open_deadlines() == 0) {
    return std::nullopt;
  }
  Cluster with = cluster;
  with.arrive(job, policy.rank(with, job));
  const std::map<JobId, Seconds> late_with = late(std::move(with), policy, true);
  const auto itself = late_with.find(job);
  if (itself != late_with.end()) {
    return Miss{job, itself->second};
  }
  const std::map<JobId, Seconds> late_without =
      late_with.empty() ? std::map<JobId, Seconds>{} : late(cluster, policy, decides_now);
  for (const auto& [other, end] : late_with) {
    if (!late_without.contains(other)) {
      return Miss{other, end};
    }
  }
  return std::nullopt;
}

bool admit(Cluster& cluster, ClusterPolicy& policy, JobId job, bool decides_now) {
  if (!policy.keeps_deadlines() || !miss_with(cluster, policy, job, decides_now)) {
    cluster.arrive(job, policy.rank(cluster, job));
    return true;
  }
  if (cluster.has_deadline(job)) {
    cluster.reject(job);
  } else if (cluster.job(job).phase != JobPhase::kHeld) {
    cluster.hold(job);
  }
  return false;
}

void admit_held(Cluster& cluster, ClusterPolicy& policy) {
  const std::vector<JobId> held = cluster.held();
  for (const JobId job : held) {
    admit(cluster, policy, job, true);
  }
}

}  // namespace torchshare
