#include "cluster/placing.h"
#include "cluster/policies/policies.h"

namespace torchshare {
namespace {

/// Earliest deadline first, with preemption and without sharing. Jobs without a deadline come after those with one, by
/// shortest remaining service.
class Edf final : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override {
    return cluster.has_deadline(job) ? Rank{0, cluster.due(job)} : Rank{1, cluster.remaining_service(job)};
  }
  void schedule(Cluster& cluster) override { schedule_by_rank(cluster, *this, cluster.options().restart_cost); }
  bool keeps_deadlines() const override { return true; }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_edf() {
  return std::make_unique<Edf>();
}

}  // namespace torchshare
