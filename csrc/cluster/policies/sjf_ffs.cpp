#include "cluster/policies/policies.h"
#include "cluster/policies/shortest_first.h"

namespace torchshare {
namespace {

/// Shortest job first with first-fit sharing: free GPUs first, then the first GPUs that have one job and room.
class SjfFfs final : public ShortestFirst {
  bool start_shared(Cluster& cluster, JobId job) const override {
    return share(cluster, job, [&](JobId other, const PairSplits&) {
      return std::optional<double>(cluster.job(other).gpus.front());
    });
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_sjf_ffs() {
  return std::make_unique<SjfFfs>();
}

}  // namespace torchshare
