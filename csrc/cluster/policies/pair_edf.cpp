#include <algorithm>

#include "cluster/placing.h"
#include "cluster/policies/policies.h"
#include "model/pair.h"

namespace torchshare {
namespace {

/// Latest start first, with pair sharing and preemption: of two jobs, the one that must start sooner to end in time. A
/// job takes free GPUs; else shares, if it and its partners still end in time; else it takes the GPUs of jobs that can
/// start later. Jobs without a deadline come after those with one, by shortest remaining service.
class PairEdf final : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override {
    const Seconds left = cluster.remaining(job);
    return cluster.has_deadline(job) ? Rank{0, cluster.due(job) - left} : Rank{1, left * cluster.job(job).asked.gpus};
  }

  void schedule(Cluster& cluster) override {
    schedule_by_rank(cluster, *this, cluster.options().restart_cost,
                     [&](JobId job) { return start_shared(cluster, job); });
    spread(cluster, *this);
  }

  bool keeps_deadlines() const override { return true; }

 private:
  /// Prefers the partners that leave most time until the first of the two deadlines is missed.
  static bool start_shared(Cluster& cluster, JobId job) {
    return share(cluster, job, [&](JobId other, const PairSplits& splits) -> std::optional<double> {
      const PairJob own{cluster.remaining(job), splits.a.slowdown};
      const PairJob theirs{cluster.remaining(other), std::max(splits.b.slowdown, 1 / cluster.job(other).speed)};
      const PairEnds ends = ends_when_sharing(own, theirs);
      const Seconds laxity = std::min(cluster.due(job) - ends.a, cluster.due(other) - ends.b) - cluster.now();
      return laxity >= 0 ? std::optional(-laxity) : std::nullopt;
    });
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_pair_edf() {
  return std::make_unique<PairEdf>();
}

}  // namespace torchshare
