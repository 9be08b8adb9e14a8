#include <algorithm>

#include "cluster/policies/pair_policy.h"
#include "cluster/policies/policies.h"

namespace torchshare {
namespace {

/// The least gain by sharing, relative: at a ratio of 2 there is none, but for rounding.
constexpr double kLeastGain = 1e-9;

/// Latest start first: of two jobs, the one that must start sooner to end in time. Jobs share if both still end in
/// time, and sooner than one after the other. Those without a deadline come after those with one, by shortest remaining
/// service.
class PairEdf final : public PairPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override {
    return cluster.has_deadline(job) ? Rank{0, cluster.due(job) - cluster.remaining(job)}
                                     : Rank{1, cluster.remaining_service(job)};
  }

  bool keeps_deadlines() const override { return true; }

 private:
  bool worth_sharing(const Cluster& cluster, JobId job, JobId other, double speed,
                     const PairSplits& splits) const override {
    const PairJob own{cluster.remaining(job), splits.a.slowdown, splits.a.after};
    const PairJob theirs{cluster.remaining(other), 1 / (speed - loss(cluster, other, speed, splits.b)), splits.b.after};
    const PairEnds ends = ends_when_sharing(own, theirs);
    const Seconds apart = own.remaining + cluster.remaining_alone(other);
    const bool gains = std::max(ends.a, ends.b) < apart * (1 - kLeastGain);
    return gains && cluster.in_time(job, cluster.now() + ends.a) && cluster.in_time(other, cluster.now() + ends.b);
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_pair_edf() {
  return std::make_unique<PairEdf>();
}

}  // namespace torchshare
