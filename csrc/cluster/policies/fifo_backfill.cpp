#include "cluster/placing.h"
#include "cluster/policies/policies.h"

namespace torchshare {
namespace {

// Number of waiting jobs of each kind to try, like SLURM's bf_max_job_test.
constexpr std::size_t kDepth = 50;

/// First in, first out, with EASY backfill (Lifka, 1995): if the first job does not fit, the earliest time at which
/// enough GPUs become free is reserved for it, and later jobs may start if they do not delay it.
class FifoBackfill final : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override { return {0, cluster.job(job).asked.arrival}; }

  void schedule(Cluster& cluster) override {
    const std::optional<JobId> first = start_in_order(cluster);
    if (!first || cluster.gpus().free() == 0) {
      return;
    }
    auto [promised, spare] = promise(cluster, *first);
    for (const JobId job : cluster.waiting().first_of_each_kind(kDepth, cluster.gpus().free())) {
      const int gpus = cluster.job(job).asked.gpus;
      const bool in_time = cluster.now() + cluster.remaining(job) <= promised;
      if (job != *first && (in_time || gpus <= spare) && start_alone(cluster, job)) {
        spare -= in_time ? 0 : gpus;
      }
    }
  }

 private:
  struct Promise {
    Seconds when;
    int spare;  ///< GPUs free at that time that the first job does not need
  };

  static Promise promise(const Cluster& cluster, JobId first) {
    std::vector<std::pair<Seconds, int>> ends;
    for (const JobId job : cluster.running()) {
      ends.emplace_back(cluster.now() + cluster.remaining(job), cluster.job(job).asked.gpus);
    }
    std::sort(ends.begin(), ends.end());
    int spare = cluster.gpus().free() - cluster.job(first).asked.gpus;
    for (const auto& [end, gpus] : ends) {
      spare += gpus;
      if (spare >= 0) {
        return {end, spare};
      }
    }
    return {kNeverVirtual, 0};
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_fifo_backfill() {
  return std::make_unique<FifoBackfill>();
}

}  // namespace torchshare
