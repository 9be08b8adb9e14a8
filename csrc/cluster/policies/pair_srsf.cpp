#include "cluster/policies/pair_policy.h"
#include "cluster/policies/policies.h"

namespace torchshare {
namespace {

/// GPU-seconds by which a job's rank improves per second of waiting and GPU of the cluster: a job of S GPU-seconds is
/// never overtaken by one that arrives S / (kAging * GPUs) seconds after it.
constexpr double kAging = 1.0 / 64;

/// Shortest remaining service first, with aging; if `rank_by_path`, shortest remaining critical path first, the upward
/// rank of HEFT (Topcuoglu et al., 2002), in GPU-seconds. Jobs share where that beats running one after the other in
/// either order.
class PairSrsf final : public PairPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override {
    const WorkloadJob& asked = cluster.job(job).asked;
    const double path = cluster.remaining_service(job) + cluster.service_behind(job);
    return {0, path + kAging * cluster.gpus().count() * asked.arrival};
  }

 private:
  bool worth_sharing(const Cluster& cluster, JobId job, JobId other, double speed,
                     const PairSplits& splits) const override {
    const PairJob alone{cluster.remaining(job), 1};
    const PairJob beside{alone.remaining, splits.a.slowdown, splits.a.after};
    const PairJob partner{cluster.remaining(other) / speed, speed / (speed - loss(cluster, other, speed, splits.b))};
    return share_now(beside, partner) <= std::min(one_after_other(alone, partner), one_after_other(partner, alone));
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_pair_srsf() {
  return std::make_unique<PairSrsf>();
}

}  // namespace torchshare
