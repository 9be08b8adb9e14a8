#include "cluster/placing.h"
#include "cluster/policies/policies.h"

namespace torchshare {
namespace {

/// First in, first out: no job overtakes the first, even if the first does not fit.
class Fifo final : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override { return {0, cluster.job(job).asked.arrival}; }
  void schedule(Cluster& cluster) override { start_in_order(cluster); }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_fifo() {
  return std::make_unique<Fifo>();
}

}  // namespace torchshare
