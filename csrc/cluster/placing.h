#pragma once

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "cluster/cluster.h"
#include "cluster/cluster_policy.h"

namespace torchshare {

/// Starts `job` alone on free GPUs; false if there are too few.
bool start_alone(Cluster& cluster, JobId job);

/// A running job that another job could run beside.
struct Partner {
  JobId job;
  int sub_batches;  ///< of the new job beside it
  double value;     ///< lower is better; defined by the policy
};

/// Whether `job` beside `other` can share with no third gang: both are gangs, which share with one other only.
bool both_gangs(const Cluster& cluster, JobId job, JobId other);

/// False if `both_gangs`, and `other` already shares with a gang.
bool gangs_may_share(const Cluster& cluster, JobId job, JobId other);

/// Starts `job` on free GPUs and beside `partners`, in their order; false if they have too few GPUs. If it can share
/// with one gang only, that is the first with which it has enough.
bool start_beside(Cluster& cluster, JobId job, const std::vector<Partner>& partners);

/// Starts `job` on free GPUs and beside running jobs that have GPUs to share and enough memory, best first; false if
/// there are too few. `value(partner, splits)` is empty for partners that the policy rejects.
template <typename Value>
bool share(Cluster& cluster, JobId job, const Value& value) {
  if (cluster.gpus().free() + cluster.gpus().half_free() < cluster.job(job).asked.gpus) {
    return false;
  }
  std::vector<Partner> partners;
  for (const JobId other : cluster.running()) {
    const ClusterJob& theirs = cluster.job(other);
    const bool has_room = theirs.shared_gpus < theirs.asked.gpus && gangs_may_share(cluster, job, other);
    const std::optional<PairSplits> splits = has_room ? cluster.splits_beside(job, other) : std::nullopt;
    const std::optional<double> worth = splits ? value(other, *splits) : std::nullopt;
    if (worth) {
      partners.push_back({other, splits->a.sub_batches, *worth});
    }
  }
  std::sort(partners.begin(), partners.end(),
            [](const Partner& x, const Partner& y) { return std::tie(x.value, x.job) < std::tie(y.value, y.job); });
  return start_beside(cluster, job, partners);
}

/// Starts waiting jobs alone, by rank, up to the first that does not fit, which it returns.
std::optional<JobId> start_in_order(Cluster& cluster);

struct Ranked {
  Rank rank;
  JobId job;
};

/// The running jobs that rank behind `job` by more than `restart_cost` seconds of its GPUs and can be suspended, in
/// descending rank. None if they have fewer than `gpus` GPUs in all.
std::vector<Ranked> ranked_behind(const Cluster& cluster, const ClusterPolicy& policy, JobId job, Seconds restart_cost,
                                  int gpus);

enum class Offer { kRefused, kTaken, kTookFromOthers };

/// Offers waiting jobs by rank to `place(job)`. Starts again from the first if a job took GPUs from others, because
/// these others may fit where earlier jobs did not.
template <typename Place>
void offer_until_settled(Cluster& cluster, const Place& place) {
  for (bool settled = false; !settled;) {
    settled = true;
    cluster.waiting().offer([&](JobId job) {
      const Offer offer = place(job);
      settled = settled && offer != Offer::kTookFromOthers;
      return offer != Offer::kRefused;
    });
  }
}

/// Places by rank without sharing: on free GPUs, or on those of jobs that rank behind by more than `restart_cost`.
void schedule_by_rank(Cluster& cluster, const ClusterPolicy& policy, Seconds restart_cost);

}  // namespace torchshare
