#include "cluster/forecast.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace torchshare {
namespace {

/// Ends the running jobs whose time has come, in the order of the simulator; false if there are none.
bool end_due(Cluster& cluster, std::map<JobId, Seconds>& ends) {
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
      if (cluster.has_deadline(job)) {
        ends[job] = cluster.now();
      }
    }
  }
  return !due.empty();
}

/// The jobs with deadlines that would end late in a cluster.
std::map<JobId, Seconds> late(const Cluster& cluster, ClusterPolicy& policy, bool decides_now) {
  const std::map<JobId, Seconds> ends = forecast(cluster, policy, decides_now);
  std::map<JobId, Seconds> found;
  for (JobId job = 0; job < cluster.jobs(); ++job) {
    const JobPhase phase = cluster.job(job).phase;
    if (cluster.has_deadline(job) && (phase == JobPhase::kWaiting || phase == JobPhase::kRunning)) {
      const auto known = ends.find(job);
      const Seconds end = known == ends.end() ? kNeverVirtual : known->second;
      if (!cluster.in_time(job, end)) {
        found[job] = end;
      }
    }
  }
  return found;
}

}  // namespace

std::map<JobId, Seconds> forecast(Cluster cluster, ClusterPolicy& policy, bool decides_now) {
  cluster.trust_estimates();
  std::map<JobId, Seconds> ends;
  for (;;) {
    if (end_due(cluster, ends) || decides_now) {
      policy.schedule(cluster);
    }
    decides_now = true;
    Seconds next = policy.look_again(cluster);
    for (const JobId job : cluster.running()) {
      next = std::min(next, cluster.ends_at(job));
    }
    if (cluster.open_deadlines() == 0 || next == kNeverVirtual) {
      return ends;
    }
    cluster.advance(std::max(cluster.now(), next));
  }
}

std::optional<Miss> miss_with(const Cluster& cluster, ClusterPolicy& policy, JobId job, bool decides_now) {
  if (!cluster.has_deadline(job) && cluster.open_deadlines() == 0) {
    return std::nullopt;
  }
  Cluster with = cluster;
  with.arrive(job, policy.rank(with, job));
  const std::map<JobId, Seconds> late_with = late(with, policy, true);
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
