#include <algorithm>

#include "cluster/policies/pair_policy.h"
#include "cluster/policies/policies.h"

namespace torchshare {
namespace {

/// GPU-seconds by which a job's rank improves per second of waiting and GPU of the cluster: a job of S GPU-seconds is
/// never overtaken by one that arrives S / (kAging * GPUs) seconds after it. Where jobs wait for days, a larger factor
/// orders them by arrival: 1 / 64 makes the average JCT of Philly's jobs on 400 GPUs, unshared, 34 times that of SRSF.
constexpr double kAging = 1.0 / 1024;

/// Shortest remaining service first, with aging; if `rank_by_path`, shortest remaining critical path first, the upward
/// rank of HEFT (Topcuoglu et al., 2002), in GPU-seconds. Jobs share where that gains more for them and for those
/// behind than it costs them: see `worth_sharing`.
class PairSrsf final : public PairPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override {
    const WorkloadJob& asked = cluster.job(job).asked;
    const double path = cluster.remaining_service(job) + cluster.service_behind(job);
    return {0, path + kAging * cluster.gpus().count() * asked.arrival};
  }

 private:
  /// Whether the sum of all completion times is no greater than if these two ran one after the other, in the better
  /// order. By sharing, the two may end later and still free their GPUs sooner, for the other jobs that wait: each of
  /// them gains the GPU-seconds saved / the GPUs of the cluster if it ends after the two, which half of them are taken
  /// to do. For equal jobs and b = other jobs that wait * GPUs of the job / GPUs of the cluster, this holds up to a
  /// ratio of
  ///
  ///     (6 + 2 b) / (4 + b)
  ///
  /// which is 1.5 without others and nearly 2 for many. At that ratio, b + 2 equal jobs (b even) have the same average
  /// completion time one by one on a GPU and sharing it in pairs.
  bool worth_sharing(const Cluster& cluster, JobId job, JobId other, double speed,
                     const PairSplits& splits) const override {
    const PairJob alone{cluster.remaining(job), 1};
    const PairJob beside{alone.remaining, splits.a.slowdown, splits.a.after};
    const PairJob partner{cluster.remaining(other) / speed, speed / (speed - loss(cluster, other, speed, splits.b))};
    const PairEnds ends = ends_when_sharing(beside, partner);
    const Seconds in_turn = 2 * std::min(one_after_other(alone, partner), one_after_other(partner, alone));
    const Seconds sooner = std::max(0.0, alone.remaining + partner.remaining - std::max(ends.a, ends.b));
    const int gpus = cluster.gpus().count() - cluster.gpus().away();
    const double backlog = static_cast<double>(cluster.waiting().size() - 1) * cluster.job(job).asked.gpus / gpus;
    return ends.a + ends.b <= in_turn + sooner * backlog / 2;
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_pair_srsf() {
  return std::make_unique<PairSrsf>();
}

}  // namespace torchshare
