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

/// A running job beside which another could run.
struct Partner {
  JobId job;
  int sub_batches;  ///< what the newcomer must be split into to fit
  double value;     ///< lower is better; its meaning is up to the policy
};

/// Starts `job` on the free GPUs and beside `partners`, in their order; false if those are too few.
bool start_beside(Cluster& cluster, JobId job, const std::vector<Partner>& partners);

/// Starts `job` on the free GPUs and beside running jobs with GPUs to share and memory for it, best first; false if
/// those are too few. `value(partner, sub_batches)` is empty for those that the policy does not want.
template <typename Value>
bool share(Cluster& cluster, JobId job, const Value& value) {
  if (cluster.gpus().free() + cluster.gpus().half_free() < cluster.job(job).asked.gpus) {
    return false;
  }
  std::vector<Partner> partners;
  for (const JobId other : cluster.running()) {
    const ClusterJob& theirs = cluster.job(other);
    const int sub_batches = theirs.shared_gpus < theirs.asked.gpus ? cluster.split_beside(job, other) : 0;
    const std::optional<double> worth = sub_batches > 0 ? value(other, sub_batches) : std::nullopt;
    if (worth) {
      partners.push_back({other, sub_batches, *worth});
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

/// The running jobs that rank behind `job` by more than `restart_cost` seconds of its GPUs, the last first.
std::vector<Ranked> ranked_behind(const Cluster& cluster, const ClusterPolicy& policy, JobId job, Seconds restart_cost);

enum class Offer { kRefused, kTaken, kTookFromOthers };

/// Offers the waiting jobs by rank to `place(job)`; again from the first when one took GPUs from others, for those may
/// fit where jobs before them did not.
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
