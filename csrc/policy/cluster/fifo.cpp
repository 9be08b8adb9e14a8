#include "policy/cluster/placing.h"
#include "policy/cluster/policies.h"

namespace torchshare {
namespace {

/// First in, first out: nobody passes the first, even where the first has no room.
class Fifo final : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override { return {0, cluster.job(job).asked.arrival}; }
  void schedule(Cluster& cluster) override {
    for (auto first = cluster.waiting().first(); first && start_alone(cluster, *first);) {
      first = cluster.waiting().first();
    }
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_fifo() {
  return std::make_unique<Fifo>();
}

}  // namespace torchshare
