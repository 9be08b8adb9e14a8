#include "policy/cluster/placing.h"
#include "policy/cluster/policies.h"

namespace torchshare {
namespace {

/// Shortest job first, without preemption; who finds no room is passed by.
class Sjf final : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override { return {0, cluster.remaining(job)}; }
  void schedule(Cluster& cluster) override {
    cluster.waiting().offer([&](JobId job) { return start_alone(cluster, job); });
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_sjf() {
  return std::make_unique<Sjf>();
}

}  // namespace torchshare
