#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "cluster/cluster.h"

namespace torchshare {

/// Decides which jobs run on which GPUs of a cluster.
class ClusterPolicy {
 public:
  virtual ~ClusterPolicy() = default;
  /// The order of waiting jobs. A job's rank does not change while it waits.
  virtual Rank rank(const Cluster& cluster, JobId job) const = 0;
  /// Starts and suspends jobs; called once per instant, after all its events.
  virtual void schedule(Cluster& cluster) = 0;
  /// Whether a forecast decides about each job that arrives (forecast.h). Such a policy keeps no state: forecasts call
  /// it, too.
  virtual bool keeps_deadlines() const { return false; }
  /// The time of the next call even if no job arrives or ends; kNeverVirtual: none.
  virtual Seconds look_again(const Cluster&) const { return kNeverVirtual; }
};

/// Makes the policy of that name. Throws std::invalid_argument that lists the names.
std::unique_ptr<ClusterPolicy> make_cluster_policy(std::string_view name);
std::vector<std::string_view> cluster_policy_names();

}  // namespace torchshare
