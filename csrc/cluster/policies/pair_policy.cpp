#include "cluster/policies/pair_policy.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace torchshare {
namespace {

double speed_alone(const Cluster& cluster, JobId job) {
  return 1 / cluster.split_cost(job, cluster.job(job).sub_batches);
}

}  // namespace

void PairPolicy::schedule(Cluster& cluster) {
  offer_until_settled(cluster, [&](JobId job) {
    if (start_alone(cluster, job) || start_shared(cluster, job)) {
      return Offer::kTaken;
    }
    if (!make_room(cluster, job)) {
      return Offer::kRefused;
    }
    return start_alone(cluster, job) || start_shared(cluster, job) ? Offer::kTookFromOthers : Offer::kRefused;
  });
  spread(cluster);
}

double PairPolicy::loss(const Cluster& cluster, JobId other, double speed, const SplitSize& split) {
  const double alone = speed * cluster.split_cost(other, cluster.job(other).sub_batches);  // in whole batches
  return std::max(0.0, speed - std::min(alone / cluster.split_cost(other, split.sub_batches), 1 / split.slowdown));
}

/// Prefers the partners with the smallest loss per GPU.
bool PairPolicy::start_shared(Cluster& cluster, JobId job) const {
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
class PairPolicy::Room {
 public:
  Room(const PairPolicy& policy, const Cluster& cluster, JobId job)
      : policy_(policy), cluster_(cluster), job_(job), missing_(cluster.job(job).asked.gpus - cluster.gpus().free()) {
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
    return splits && policy_.worth_sharing(cluster_, job_, other, speed, *splits);
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

  const PairPolicy& policy_;
  const Cluster& cluster_;
  const JobId job_;
  int missing_;                           // without the GPUs beside `gangs_`
  std::unordered_map<JobId, int> gangs_;  // the GPUs beside each gang, if `job_` shares with one of them only
  std::unordered_set<JobId> leaving_;
};

/// Suspends jobs that rank behind `job`, in descending rank, until it has enough GPUs. Suspends none if that is
/// impossible.
bool PairPolicy::make_room(Cluster& cluster, JobId job) const {
  const Gpus& gpus = cluster.gpus();
  const int least = cluster.job(job).asked.gpus - gpus.free() - gpus.half_free();
  const std::vector<Ranked> behind = ranked_behind(cluster, *this, job, cluster.options().restart_cost, least);
  if (behind.empty()) {
    return false;
  }
  Room room(*this, cluster, job);
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

/// Moves sharing jobs to free GPUs, and starts split jobs whole, if that saves more than the restart costs.
void PairPolicy::spread(Cluster& cluster) const {
  std::vector<JobId> slowed;
  for (const JobId job : cluster.running()) {
    const ClusterJob& mine = cluster.job(job);
    const bool shares = mine.shared_gpus > 0;
    const bool is_split = cluster.cost_without_partner(job, mine.sub_batches) > 1;
    if ((shares || is_split) && !mine.pinned && mine.restart_left == 0 &&
        (!shares || mine.asked.gpus <= cluster.gpus().free())) {
      slowed.push_back(job);
    }
  }
  for (const JobId job : slowed) {
    const ClusterJob& mine = cluster.job(job);
    if (mine.shared_gpus > 0 && mine.asked.gpus > cluster.gpus().free()) {
      continue;  // others have moved there
    }
    const double after = cluster.cost_without_partner(job, mine.sub_batches);
    const Seconds alone = cluster.remaining(job);
    const Seconds left = alone / mine.speed;
    Seconds together = 0;
    for (const GpuId gpu : mine.gpus) {
      const JobId other = cluster.gpus().partner(gpu, job);
      if (other != kNobody) {
        together = std::max(together, std::min(left, cluster.remaining(other) / cluster.job(other).speed));
      }
    }
    if (together * (1 - mine.speed) + (after - 1) * (alone - together * mine.speed) > cluster.options().restart_cost) {
      cluster.suspend(job, rank(cluster, job));
      start_alone(cluster, job);
    }
  }
}

}  // namespace torchshare
