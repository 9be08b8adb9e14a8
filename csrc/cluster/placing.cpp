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

std::vector<Ranked> ranked_behind(const Cluster& cluster, const ClusterPolicy& policy, JobId job, Seconds restart_cost,
                                  int gpus) {
  Rank bar = cluster.job(job).rank;
  bar.value += restart_cost * cluster.job(job).asked.gpus;
  bar.user = cluster.user_place(job);
  const bool fair = cluster.options().fair_half_life > 0;
  std::vector<Ranked> behind;
  for (const JobId other : cluster.running()) {
    Rank rank = policy.rank(cluster, other);
    rank.priority = cluster.job(other).asked.priority;
    if (fair) {
      rank.user = cluster.user_place(other);
    }
    const bool of_other_user = fair && rank.user != bar.user && rank.priority == bar.priority;
    if (bar < rank && !cluster.job(other).pinned && (!of_other_user || cluster.user_has_had_more(other, job))) {
      behind.push_back({rank, other});
      gpus -= cluster.job(other).asked.gpus;
    }
  }
  if (gpus > 0) {
    return {};
  }
  std::sort(behind.begin(), behind.end(),
            [](const Ranked& x, const Ranked& y) { return std::tie(y.rank, y.job) < std::tie(x.rank, x.job); });
  return behind;
}

void schedule_by_rank(Cluster& cluster, const ClusterPolicy& policy, Seconds restart_cost) {
  offer_until_settled(cluster, [&](JobId job) {
    if (start_alone(cluster, job)) {
      return Offer::kTaken;
    }
    int missing = cluster.job(job).asked.gpus - cluster.gpus().free();
    const std::vector<Ranked> behind = ranked_behind(cluster, policy, job, restart_cost, missing);
    if (behind.empty()) {
      return Offer::kRefused;
    }
    for (auto victim = behind.begin(); missing > 0; ++victim) {
      missing -= cluster.job(victim->job).asked.gpus;
      cluster.suspend(victim->job, victim->rank);
    }
    start_alone(cluster, job);
    return Offer::kTookFromOthers;
  });
}

}  // namespace torchshare
