#include "cluster/policies/policies.h"
#include "cluster/policies/shortest_first.h"
#include "model/pair.h"

namespace torchshare {
namespace {

/// SJF with best sharing benefit first (arXiv 2407.13088): free GPUs first; else beside the running jobs with which
/// sharing now beats waiting, by ascending average completion time of the pair. Never suspends.
class SjfBsbf final : public ShortestFirst {
  bool start_shared(Cluster& cluster, JobId job) const override {
    return share(cluster, job, [&](JobId other, int sub_batches) -> std::optional<double> {
      const PairJob a{cluster.remaining(job) * cluster.split_cost(sub_batches), cluster.ratio(job, other)};
      const PairJob b{cluster.remaining(other) * cluster.split_cost(cluster.job(other).sub_batches),
                      cluster.ratio(other, job)};
      const double together = share_now(a, b);
      return together < one_after_other(b, {cluster.remaining(job), 1}) ? std::optional(together) : std::nullopt;
    });
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_sjf_bsbf() {
  return std::make_unique<SjfBsbf>();
}

}  // namespace torchshare
