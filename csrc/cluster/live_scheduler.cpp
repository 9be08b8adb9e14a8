#include "cluster/live_scheduler.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace torchshare {

LiveScheduler::LiveScheduler(Cluster cluster, std::unique_ptr<ClusterPolicy> policy)
    : cluster_(std::move(cluster)), policy_(std::move(policy)), told_(cluster_.jobs()) {}

JobId LiveScheduler::add(const JobRecord& job, Seconds estimate) {
  const JobId id = cluster_.add(job, estimate);
  told_.emplace_back();
  return id;
}

LiveScheduler::Orders LiveScheduler::arrive(JobId job, Seconds now) {
  check_job(job);
  if (cluster_.job(job).phase != JobPhase::kToCome) {
    throw std::invalid_argument(fmt::format("job {} has already arrived", job));
  }
  advance(now);
  cluster_.arrive(job, policy_->rank(cluster_, job));
  return decide();
}

LiveScheduler::Orders LiveScheduler::end(JobId job, Seconds now) {
  check_job(job);
  const JobPhase phase = cluster_.job(job).phase;
  if (phase != JobPhase::kRunning && phase != JobPhase::kWaiting) {
    throw std::invalid_argument(fmt::format("job {} neither runs nor waits", job));
  }
  advance(now);
  cluster_.end(job);
  told_[job].clear();
  return decide();
}

LiveScheduler::Orders LiveScheduler::lose(GpuId gpu, Seconds now) {
  check_gpu(gpu);
  advance(now);
  while (cluster_.gpus().on(gpu)[0] != kNobody) {
    const JobId job = cluster_.gpus().on(gpu)[0];
    cluster_.suspend(job, policy_->rank(cluster_, job));
  }
  cluster_.set_usable(gpu, false);
  return decide();
}

LiveScheduler::Orders LiveScheduler::gain(GpuId gpu, Seconds now) {
  check_gpu(gpu);
  advance(now);
  cluster_.set_usable(gpu, true);
  return decide();
}

LiveScheduler::Orders LiveScheduler::look(Seconds now) {
  advance(now);
  return decide();
}

void LiveScheduler::set_pinned(JobId job, bool pinned) {
  check_job(job);
  cluster_.set_pinned(job, pinned);
}

void LiveScheduler::set_interference(Interference interference, Seconds now) {
  if (interference.models() < cluster_.models()) {
    throw std::invalid_argument(fmt::format("interference table must have at least {} models, got {}",
                                            cluster_.models(), interference.models()));
  }
  advance(now);
  cluster_.set_interference(std::move(interference));
}

void LiveScheduler::check_gpu(GpuId gpu) const {
  if (gpu < 0 || gpu >= cluster_.gpus().count()) {
    throw std::invalid_argument(fmt::format("GPU must be below {}, got {}", cluster_.gpus().count(), gpu));
  }
}

void LiveScheduler::check_job(JobId job) const {
  if (job >= cluster_.jobs()) {
    throw std::invalid_argument(fmt::format("job {} does not exist", job));
  }
}

void LiveScheduler::advance(Seconds now) {
  if (!(now >= cluster_.now())) {
    throw std::invalid_argument(fmt::format("time must not decrease, got {} s after {} s", now, cluster_.now()));
  }
  cluster_.advance(now);
}

LiveScheduler::Orders LiveScheduler::decide() {
  policy_->schedule(cluster_);
  cluster_.take_changed();
  Orders orders;
  for (JobId job = 0; job < cluster_.jobs(); ++job) {
    const std::vector<GpuId>& gpus = cluster_.job(job).gpus;
    if (gpus != told_[job]) {
      if (!told_[job].empty()) {
        orders.suspend.push_back(job);
      }
      if (!gpus.empty()) {
        orders.start.push_back(job);
      }
      told_[job] = gpus;
    }
  }
  return orders;
}

}  // namespace torchshare
