#include "cluster/live_scheduler.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace torchshare {

LiveScheduler::LiveScheduler(Cluster cluster, std::unique_ptr<ClusterPolicy> policy)
    : cluster_(std::move(cluster)), policy_(std::move(policy)), running_(cluster_.jobs()) {}

LiveScheduler::Orders LiveScheduler::arrive(JobId job, Seconds now) {
  if (job >= cluster_.jobs() || cluster_.job(job).phase != JobPhase::kToCome) {
    throw std::invalid_argument(fmt::format("job {} has already arrived, or does not exist", job));
  }
  advance(now);
  cluster_.arrive(job, policy_->rank(cluster_, job));
  return decide();
}

LiveScheduler::Orders LiveScheduler::end(JobId job, Seconds now) {
  if (job >= cluster_.jobs() || cluster_.job(job).phase != JobPhase::kRunning) {
    throw std::invalid_argument(fmt::format("job {} is not running", job));
  }
  advance(now);
  cluster_.end(job);
  running_[job] = false;
  return decide();
}

void LiveScheduler::advance(Seconds now) {
  if (now < cluster_.now()) {
    throw std::invalid_argument(fmt::format("time must not decrease, got {} s after {} s", now, cluster_.now()));
  }
  cluster_.advance(now);
}

LiveScheduler::Orders LiveScheduler::decide() {
  policy_->schedule(cluster_);
  cluster_.take_changed();
  Orders orders;
  for (JobId job = 0; job < cluster_.jobs(); ++job) {
    const bool runs = cluster_.job(job).phase == JobPhase::kRunning;
    if (runs != running_[job]) {
      (runs ? orders.start : orders.suspend).push_back(job);
      running_[job] = runs;
    }
  }
  return orders;
}

}  // namespace torchshare
