#include "model/pair.h"
#include "policy/cluster/placing.h"
#include "policy/cluster/policies.h"

namespace torchshare {
namespace {

/// SJF with best sharing benefit first (arXiv 2407.13088): free GPUs first; else beside the running jobs with which
/// sharing now beats waiting, by ascending average completion time of the pair. Never suspends.
class SjfBsbf final : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override { return {0, cluster.remaining(job)}; }
  void schedule(Cluster& cluster) override {
    cluster.waiting().offer([&](JobId job) { return start_alone(cluster, job) || share(cluster, job); });
  }

 private:
  static bool share(Cluster& cluster, JobId job) {
    if (cluster.gpus().free() + cluster.gpus().half_free() < cluster.job(job).asked.gpus) {
      return false;
    }
    const auto pair_value = [&](JobId other) -> std::optional<double> {
      const int sub_batches = cluster.split_beside(job, other);
      const PairJob a{cluster.remaining(job) * cluster.split_cost(sub_batches), cluster.ratio(job, other)};
      const PairJob b{cluster.remaining(other) * cluster.split_cost(cluster.job(other).sub_batches),
                      cluster.ratio(other, job)};
      const double together = share_now(a, b);
      return together < one_after_other(b, {cluster.remaining(job), 1}) ? std::optional(together) : std::nullopt;
    };
    return start_beside(cluster, job, partners_for(cluster, job, pair_value));
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_sjf_bsbf() {
  return std::make_unique<SjfBsbf>();
}

}  // namespace torchshare
