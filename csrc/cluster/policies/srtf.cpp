#include "cluster/placing.h"
#include "cluster/policies/policies.h"

namespace torchshare {
namespace {

/// Shortest remaining time first, with preemption.
class Srtf final : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override { return {0, cluster.remaining(job)}; }
  void schedule(Cluster& cluster) override { schedule_by_rank(cluster, *this, cluster.options().restart_cost); }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_srtf() {
  return std::make_unique<Srtf>();
}

}  // namespace torchshare
