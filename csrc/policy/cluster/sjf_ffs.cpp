#include "policy/cluster/placing.h"
#include "policy/cluster/policies.h"

namespace torchshare {
namespace {

/// Shortest job first with first-fit sharing: free GPUs first, then the first GPUs that have one job and room.
class SjfFfs final : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override { return {0, cluster.remaining(job)}; }
  void schedule(Cluster& cluster) override {
    cluster.waiting().offer([&](JobId job) { return start_alone(cluster, job) || share(cluster, job); });
  }

 private:
  static bool share(Cluster& cluster, JobId job) {
    const int need = cluster.job(job).asked.gpus;
    if (cluster.gpus().free() + cluster.gpus().half_free() < need) {
      return false;
    }
    const auto first_gpu = [&](JobId other) { return std::optional<double>(cluster.job(other).gpus.front()); };
    return start_beside(cluster, job, partners_for(cluster, job, first_gpu));
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_sjf_ffs() {
  return std::make_unique<SjfFfs>();
}

}  // namespace torchshare
