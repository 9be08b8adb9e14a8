#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "cluster/cluster.h"

namespace torchshare {

/// Decides who runs where in a cluster.
class ClusterPolicy {
 public:
  virtual ~ClusterPolicy() = default;
  /// Who goes first. Of a job that waits it does not change.
  virtual Rank rank(const Cluster& cluster, JobId job) const = 0;
  /// Starts and suspends jobs; called once after all that happens at one instant.
  virtual void schedule(Cluster& cluster) = 0;
  /// When to be called again though no job arrives or ends; kNeverVirtual for never.
  virtual Seconds look_again(const Cluster&) const { return kNeverVirtual; }
};

/// Makes the policy of that name. Throws std::invalid_argument with the names there are.
std::unique_ptr<ClusterPolicy> make_cluster_policy(std::string_view name);
std::vector<std::string_view> cluster_policy_names();

}  // namespace torchshare
