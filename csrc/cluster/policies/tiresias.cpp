#include <algorithm>
#include <cmath>

#include "cluster/placing.h"
#include "cluster/policies/policies.h"

namespace torchshare {
namespace {

constexpr double kThreshold = 57600;  // GPU-seconds after which a job moves to the second queue
constexpr Seconds kRound = 60;

/// Tiresias (NSDI 19), discretized two-dimensional LAS: two queues by attained service, first in first out in each,
/// scheduled in rounds.
class Tiresias final : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override {
    return {cluster.attained(job) < kThreshold ? 0 : 1, cluster.job(job).asked.arrival};
  }

  void schedule(Cluster& cluster) override {
    if (cluster.now() < next_round_) {
      pending_ = true;
      return;
    }
    pending_ = false;
    schedule_by_rank(cluster, *this, 0);
    next_round_ = kRound * (std::floor(cluster.now() / kRound) + 1);
  }

  Seconds look_again(const Cluster& cluster) const override {
    // The next round is needed only if something has changed since the last, or a running job will move down.
    if (pending_) {
      return next_round_;
    }
    if (cluster.waiting().size() == 0) {
      return kNeverVirtual;
    }
    Seconds crossing = kNeverVirtual;
    for (const JobId job : cluster.running()) {
      const double left = kThreshold - cluster.attained(job);
      if (left > 0) {
        crossing = std::min(crossing, cluster.now() + left / cluster.job(job).asked.gpus);
      }
    }
    return kRound * std::ceil(crossing / kRound);
  }

 private:
  Seconds next_round_ = 0;
  bool pending_ = false;
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_tiresias() {
  return std::make_unique<Tiresias>();
}

}  // namespace torchshare
