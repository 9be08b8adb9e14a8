#include "cluster/placing.h"

#include <utility>

namespace torchshare {

bool start_alone(Cluster& cluster, JobId job) {
  const int gpus = cluster.job(job).asked.gpus;
  if (cluster.gpus().free() < gpus) {
    return false;
  }
  cluster.start(job, cluster.gpus().pick_free(gpus));
  return true;
}

namespace {

bool is_gang(const Cluster& cluster, JobId job) {
  return cluster.job(job).asked.gpus > 1;
}

/// Does not share with gangs other than `gang`, if both are.
bool start_beside(Cluster& cluster, JobId job, const std::vector<Partner>& partners, JobId gang) {
  const Gpus& gpus = cluster.gpus();
  const int need = cluster.job(job).asked.gpus;
  std::vector<GpuId> picked = gpus.pick_free(std::min(gpus.free(), need));
  int sub_batches = 1;
  for (const Partner& partner : partners) {
    if (partner.job != gang && both_gangs(cluster, job, partner.job)) {
      continue;
    }
    for (const GpuId gpu : cluster.job(partner.job).gpus) {
      if (std::ssize(picked) < need && gpus.on(gpu)[1] == kNobody) {
        picked.push_back(gpu);
        sub_batches = std::max(sub_batches, partner.sub_batches);
      }
    }
  }
  if (std::ssize(picked) < need) {
    return false;
  }
  cluster.start(job, std::move(picked), sub_batches);
  return true;
}

}  // namespace

bool both_gangs(const Cluster& cluster, JobId job, JobId other) {
  return cluster.options().one_gang_beside && is_gang(cluster, job) && is_gang(cluster, other);
}

bool gangs_may_share(const Cluster& cluster, JobId job, JobId other) {
  const std::vector<GpuId>& gpus = cluster.job(other).gpus;
  return !both_gangs(cluster, job, other) || std::none_of(gpus.begin(), gpus.end(), [&](GpuId gpu) {
    const JobId partner = cluster.gpus().partner(gpu, other);
    return partner != kNobody && is_gang(cluster, partner);
  });
}

bool start_beside(Cluster& cluster, JobId job, const std::vector<Partner>& partners) {
  std::vector<JobId> gangs;
  for (const Partner& partner : partners) {
    if (both_gangs(cluster, job, partner.job)) {
      gangs.push_back(partner.job);
    }
  }
  if (gangs.empty()) {
    return start_beside(cluster, job, partners, kNobody);
  }
  return std::any_of(gangs.begin(), gangs.end(),
                     [&](JobId gang) { return start_beside(cluster, job, partners, gang); });
}

std::optional<JobId> start_in_order(Cluster& cluster) {
  std::optional<JobId> first = cluster.waiting().first();
  while (first && start_alone(cluster, *first)) {
    first = cluster.waiting().first();
  }
  return first;
}

std::vector<Ranked> ranked_behind(const Cluster& cluster, const ClusterPolicy& policy, JobId job,
                                  Seconds restart_cost) {
  Rank bar = cluster.job(job).rank;
  bar.value += restart_cost * cluster.job(job).asked.gpus;
  std::vector<Ranked> behind;
  for (const JobId other : cluster.running()) {
    Rank rank = policy.rank(cluster, other);
    rank.priority = cluster.job(other).asked.priority;
    if (bar < rank && !cluster.job(other).pinned) {
      behind.push_back({rank, other});
    }
  }
  std::sort(behind.begin(), behind.end(),
            [](const Ranked& x, const Ranked& y) { return std::tie(y.rank, y.job) < std::tie(x.rank, x.job); });
  return behind;
}

void spread(Cluster& cluster, const ClusterPolicy& policy) {
  std::vector<JobId> sharing;
  for (const JobId job : cluster.running()) {
    const ClusterJob& mine = cluster.job(job);
    if (mine.shared_gpus > 0 && !mine.pinned && mine.restart_left == 0 && mine.asked.gpus <= cluster.gpus().free()) {
      sharing.push_back(job);
    }
  }
  for (const JobId job : sharing) {
    const ClusterJob& mine = cluster.job(job);
    if (mine.shared_gpus == 0 || mine.asked.gpus > cluster.gpus().free()) {
      continue;
    }
    const Seconds left = cluster.remaining(job) / mine.speed;
    Seconds together = 0;
    for (const GpuId gpu : mine.gpus) {
      const JobId other = cluster.gpus().partner(gpu, job);
      if (other != kNobody) {
        together = std::max(together, std::min(left, cluster.remaining(other) / cluster.job(other).speed));
      }
    }
    if (together * (1 - mine.speed) > cluster.options().restart_cost) {
      cluster.suspend(job, policy.rank(cluster, job));
      start_alone(cluster, job);
    }
  }
}

}  // namespace torchshare
