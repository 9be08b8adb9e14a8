#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "cluster/placing.h"
#include "cluster/policies/policies.h"
#include "model/pair.h"

namespace torchshare {
namespace {

/// GPU-seconds by which a job's rank improves per second of waiting and GPU of the cluster: a job of S GPU-seconds is
/// never overtaken by one that arrives S / (kAging * GPUs) seconds after it.
constexpr double kAging = 1.0 / 64;

/// Shortest remaining service first, with aging, pair sharing and suspension. A job takes, in this order: free GPUs;
/// GPUs of jobs with which sharing now beats running one after the other in either order; GPUs of jobs that rank behind
/// it, which it suspends. Sharing jobs migrate when GPUs free up.
class PairSrsf final : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override {
    const WorkloadJob& asked = cluster.job(job).asked;
    return {0, cluster.remaining(job) * asked.gpus + kAging * cluster.gpus().count() * asked.arrival};
  }

  void schedule(Cluster& cluster) override {
    offer_until_settled(cluster, [&](JobId job) {
      if (start_alone(cluster, job) || start_shared(cluster, job)) {
        return Offer::kTaken;
      }
      if (!make_room(cluster, job)) {
        return Offer::kRefused;
      }
      return start_alone(cluster, job) || start_shared(cluster, job) ? Offer::kTookFromOthers : Offer::kRefused;
    });
    spread(cluster, *this);
  }

 private:
  static double speed_alone(const Cluster& cluster, JobId job) {
    return 1 / cluster.split_cost(job, cluster.job(job).sub_batches);
  }

  /// The speed that `other`, now at `speed`, loses if it shares so; 0 if it is already that slow.
  static double loss(const Cluster& cluster, JobId other, double speed, const SplitSize& split) {
    const double alone = speed * cluster.split_cost(other, cluster.job(other).sub_batches);  // in whole batches
    return std::max(0.0, speed - std::min(alone / cluster.split_cost(other, split.sub_batches), 1 / split.slowdown));
  }

  static bool worth_sharing(const Cluster& cluster, JobId job, JobId other, double speed, const PairSplits& splits) {
    const PairJob alone{cluster.remaining(job), 1};
    const PairJob beside{alone.remaining, splits.a.slowdown};
    const PairJob partner{cluster.remaining(other) / speed, speed / (speed - loss(cluster, other, speed, splits.b))};
    return share_now(beside, partner) <= std::min(one_after_other(alone, partner), one_after_other(partner, alone));
  }

  /// Prefers the partners with the smallest loss per GPU.
  static bool start_shared(Cluster& cluster, JobId job) {
    return share(cluster, job, [&](JobId other, const PairSplits& splits) -> std::optional<double> {
      const ClusterJob& theirs = cluster.job(other);
      if (!worth_sharing(cluster, job, other, theirs.speed, splits)) {
        return std::nullopt;
      }
      const int offered = std::min(cluster.job(job).asked.gpus, theirs.asked.gpus - theirs.shared_gpus);
      return loss(cluster, other, theirs.speed, splits.b) / offered;
    });
  }

  /// The GPUs that a job could take, free or shared, if some running jobs were suspended.
  class Room {
   public:
    Room(const Cluster& cluster, JobId job)
        : cluster_(cluster), job_(job), missing_(cluster.job(job).asked.gpus - cluster.gpus().free()) {
      for (const JobId other : cluster.running()) {
        const ClusterJob& theirs = cluster.job(other);
        if (both_gangs(cluster, job, other)) {
          gangs_[other] = beside_gang(other);
        } else if (theirs.shared_gpus < theirs.asked.gpus && would_share(other, theirs.speed)) {
          missing_ -= theirs.asked.gpus - theirs.shared_gpus;
        }
      }
    }

    bool is_enough() const {
      return missing_ <= 0 ||
             std::any_of(gangs_.begin(), gangs_.end(), [&](const auto& gang) { return gang.second >= missing_; });
    }

    void suspend(JobId victim) {
      const bool was_gang = gangs_.erase(victim) > 0;
      leaving_.insert(victim);
      for (const GpuId gpu : cluster_.job(victim).gpus) {
        const JobId stays = cluster_.gpus().partner(gpu, victim);
        if (gangs_.contains(stays)) {
          gangs_[stays] = beside_gang(stays);
        } else if (stays == kNobody || leaving_.contains(stays)) {
          const double speed = stays == kNobody ? cluster_.job(victim).speed : speed_alone(cluster_, victim);
          missing_ -= !was_gang && would_share(victim, speed) ? 0 : 1;  // otherwise already counted
        } else {
          missing_ -= would_share(stays, speed_alone(cluster_, stays)) ? 1 : 0;
        }
      }
    }

   private:
    bool would_share(JobId other, double speed) const {
      const std::optional<PairSplits> splits = cluster_.splits_beside(job_, other);
      return splits && worth_sharing(cluster_, job_, other, speed, *splits);
    }

    int beside_gang(JobId gang) const {
      const ClusterJob& theirs = cluster_.job(gang);
      int gpus = 0;
      for (const GpuId gpu : theirs.gpus) {
        const JobId partner = cluster_.gpus().partner(gpu, gang);
        const bool is_left = partner == kNobody || leaving_.contains(partner);
        if (!is_left && both_gangs(cluster_, gang, partner)) {
          return 0;
        }
        gpus += is_left ? 1 : 0;
      }
      const double speed = gpus == theirs.asked.gpus ? speed_alone(cluster_, gang) : theirs.speed;
      return would_share(gang, speed) ? gpus : 0;
    }

    const Cluster& cluster_;
    const JobId job_;
    int missing_;                           // without the GPUs beside `gangs_`
    std::unordered_map<JobId, int> gangs_;  // the GPUs beside each gang, if `job_` shares with one of them only
    std::unordered_set<JobId> leaving_;
  };

  /// Suspends jobs that rank behind `job`, in descending rank, until it has enough GPUs. Suspends none if that is
  /// impossible.
  bool make_room(Cluster& cluster, JobId job) const {
    const std::vector<Ranked> behind = ranked_behind(cluster, *this, job, cluster.options().restart_cost);
    Room room(cluster, job);
    auto next = behind.begin();
    for (; next != behind.end() && !room.is_enough(); ++next) {
      room.suspend(next->job);
    }
    if (!room.is_enough()) {
      return false;
    }
    for (auto victim = behind.begin(); victim != next; ++victim) {
      cluster.suspend(victim->job, victim->rank);
    }
    return true;
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_pair_srsf() {
  return std::make_unique<PairSrsf>();
}

}  // namespace torchshare
