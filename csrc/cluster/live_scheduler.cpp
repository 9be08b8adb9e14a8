#include "cluster/live_scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace torchshare {

LiveScheduler::LiveScheduler(Cluster cluster, std::unique_ptr<ClusterPolicy> policy)
    : cluster_(std::move(cluster)), policy_(std::move(policy)) {}

JobId LiveScheduler::add(const WorkloadJob& job, Seconds estimate) {
  return cluster_.add(job, estimate);
}

std::optional<LiveScheduler::MissWith> LiveScheduler::miss_with(const std::vector<WorkloadJob>& jobs, Seconds now,
                                                                bool decides_now) const {
  if (!policy_->keeps_deadlines()) {
    return std::nullopt;
  }
  Cluster trial = cluster_;
  trial.advance(std::max(now, trial.now()));
  bool has_usable = false;
  for (GpuId gpu = 0; gpu < trial.gpus().count(); ++gpu) {
    has_usable |= trial.gpus().usable(gpu);
  }
  if (!has_usable) {
    trial.set_usable(0, true);  // the first host is yet to report
  }
  for (std::size_t index = 0; index < jobs.size(); ++index) {
    while (jobs[index].model >= trial.models()) {
      trial.add_model();
    }
    const JobId job = trial.add(jobs[index], jobs[index].duration);
    if (const auto miss = torchshare::miss_with(trial, *policy_, job, decides_now)) {
      return MissWith{index, *miss};
    }
    trial.arrive(job, policy_->rank(trial, job));
  }
  return std::nullopt;
}

LiveScheduler::Orders LiveScheduler::arrive(const std::vector<JobId>& jobs, Seconds now) {
  check_to_come(jobs);
  advance(now);
  enter(jobs, jobs.size() > 1, false);
  return decide();
}

LiveScheduler::Orders LiveScheduler::release(const std::vector<JobId>& jobs, Seconds now) {
  check_to_come(jobs);
  advance(now);
  enter(jobs, jobs.size() > 1, true);
  return decide();
}

void LiveScheduler::enter(const std::vector<JobId>& jobs, bool decides_now, bool drop_deadlines) {
  const auto has_deadline = [this](JobId job) { return cluster_.has_deadline(job); };
  std::vector<JobId> ordered = jobs;  // of the others, only those are let in that make none of them late
  std::stable_partition(ordered.begin(), ordered.end(), has_deadline);
  for (const JobId job : ordered) {
    if (drop_deadlines && policy_->keeps_deadlines() && has_deadline(job) &&
        torchshare::miss_with(cluster_, *policy_, job, decides_now)) {
      cluster_.drop_deadline(job);
    }
    if (has_deadline(job)) {
      cluster_.arrive(job, policy_->rank(cluster_, job));
    } else {
      admit(cluster_, *policy_, job, decides_now);
    }
  }
}

LiveScheduler::Orders LiveScheduler::end(JobId job, Seconds now, const std::vector<JobId>& successors) {
  check_job(job);
  check_to_come(successors);
  const JobPhase phase = cluster_.job(job).phase;
  if (phase != JobPhase::kRunning && phase != JobPhase::kWaiting && phase != JobPhase::kHeld) {
    throw std::invalid_argument(fmt::format("job {} neither runs nor waits", job));
  }
  advance(now);
  cluster_.end(job);
  told_.erase(job);
  enter(successors, true, true);
  if (cluster_.has_deadline(job)) {
    admit_held(cluster_, *policy_);
  }
  return decide();
}

LiveScheduler::Orders LiveScheduler::lose(GpuId gpu, Seconds heard, Seconds now) {
  check_gpu(gpu);
  advance(now);
  while (cluster_.gpus().on(gpu)[0] != kNobody) {
    const JobId job = cluster_.gpus().on(gpu)[0];
    cluster_.take_back(job, now - heard);
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

JobProgress LiveScheduler::progress(JobId job) const {
  check_job(job);
  return cluster_.progress(job);
}

void LiveScheduler::restore(JobId job, const JobProgress& progress, std::vector<GpuId> gpus, Seconds now) {
  check_to_come({job});
  advance(now);
  cluster_.restore(job, progress);
  if (progress.held) {
    cluster_.hold(job);
    return;
  }
  cluster_.arrive(job, progress.rank ? *progress.rank : policy_->rank(cluster_, job));
  if (!gpus.empty()) {
    std::for_each(gpus.begin(), gpus.end(), [this](GpuId gpu) { check_gpu(gpu); });
    told_[job] = {gpus, progress.sub_batches};
    cluster_.start(job, std::move(gpus), progress.sub_batches);
    cluster_.restore(job, progress);  // `start` has begun a restart
  }
}

void LiveScheduler::set_pinned(JobId job, bool pinned) {
  check_job(job);
  cluster_.set_pinned(job, pinned);
}

void LiveScheduler::set_group(JobId job, int group) {
  check_job(job);
  cluster_.set_group(job, group);
}

void LiveScheduler::set_ratio(int model, int partner, double ratio, Seconds now) {
  advance(now);
  cluster_.set_ratio(model, partner, ratio);
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

void LiveScheduler::check_to_come(const std::vector<JobId>& jobs) const {
  for (const JobId job : jobs) {
    check_job(job);
    if (cluster_.job(job).phase != JobPhase::kToCome) {
      throw std::invalid_argument(fmt::format("job {} has already arrived", job));
    }
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
  std::map<JobId, Place> now;
  for (const JobId job : cluster_.running()) {
    now.emplace(job, Place{cluster_.job(job).gpus, cluster_.job(job).sub_batches});
  }
  const auto only_in = [](const auto& some, const auto& others) {
    std::vector<JobId> jobs;
    for (const auto& [job, place] : some) {
      const auto other = others.find(job);
      if (other == others.end() || other->second != place) {
        jobs.push_back(job);
      }
    }
    return jobs;
  };
  Orders orders{only_in(told_, now), only_in(now, told_)};
  told_ = std::move(now);
  return orders;
}

}  // namespace torchshare
