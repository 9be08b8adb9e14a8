#include "cluster/placing.h"
#include "cluster/policies/policies.h"

namespace torchshare {
namespace {

/// Shortest remaining service first, with preemption: service is time times GPUs.
class Srsf final : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override { return {0, cluster.remaining_service(job)}; }
  void schedule(Cluster& cluster) override { schedule_by_rank(cluster, *this, cluster.options().restart_cost); }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_srsf() {
  return std::make_unique<Srsf>();
}

}  // namespace torchshare
