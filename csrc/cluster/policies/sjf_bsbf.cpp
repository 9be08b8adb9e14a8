#include "cluster/policies/policies.h"
#include "cluster/policies/shortest_first.h"
#include "model/pair.h"

namespace torchshare {
namespace {

/// SJF with best sharing benefit first (arXiv 2407.13088): free GPUs first; else beside the running jobs with which
/// sharing now beats waiting, by ascending average completion time of the pair in its best sub-batches. Never suspends.
class SjfBsbf final : public ShortestFirst {
  bool start_shared(Cluster& cluster, JobId job) const override {
    return share(cluster, job, [&](JobId other, const PairSplits& splits) -> std::optional<double> {
      const double apart = one_after_other({cluster.remaining_alone(other), 1}, {cluster.remaining(job), 1});
      return splits.value < apart ? std::optional(splits.value) : std::nullopt;
    });
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_sjf_bsbf() {
  return std::make_unique<SjfBsbf>();
}

}  // namespace torchshare
