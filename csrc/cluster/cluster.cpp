#include "cluster/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace torchshare {
namespace {

// Steps this coarse keep jobs of similar age from preempting each other in turn.
constexpr Seconds kMinAge = 300;
constexpr double kAgeStep = 4;

constexpr std::size_t kMaxSplits = 8;  // 1, 2, 4, ..., 128 sub-batches
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

}  // namespace

Cluster::Cluster(const ClusterOptions& options, const Interference& interference, const std::vector<WorkloadJob>& jobs,
                 const std::vector<Seconds>& estimates)
    : options_(options), interference_(interference), gpus_(options.gpus, options.gpus_per_node) {
  if (!(options.checkpoint_every > 0)) {
    throw std::invalid_argument(
        fmt::format("checkpoints must be more than 0 s of work apart, got {} s", options.checkpoint_every));
  }
  if (estimates.size() != jobs.size()) {
    throw std::invalid_argument(
        fmt::format("a workload must have one estimate per job, got {} for {} jobs", estimates.size(), jobs.size()));
  }
  jobs_.reserve(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    add(jobs[i], estimates[i]);
  }
  if (options.fair_half_life != 0) {
    int last = 0;
    for (const WorkloadJob& job : jobs) {
      last = std::max(last, job.user);
    }
    users_.emplace(options.fair_half_life, static_cast<std::size_t>(last) + 1);
  }
}

JobId Cluster::add(const WorkloadJob& job, Seconds estimate) {
  check(job, estimate, jobs_.size());
  ClusterJob& entry = jobs_.emplace_back();
  entry.asked = job;
  entry.estimate = estimate;
  entry.work_left = job.duration;
  entry.kind = kind_of(job);
  return static_cast<JobId>(jobs_.size() - 1);
}

WaitingQueue::Kind Cluster::kind_of(WorkloadJob job) {
  if (options_.gpu_memory_gib == 0) {
    job.memory_gib = 0;  // if memory is ignored, it distinguishes no kinds
    job.split = {};
  }
  job.split.most = std::min(job.split.most, options_.largest_split);
  if (options_.fair_half_life == 0) {
    job.user = 0;
  }
  return waiting_.kind_of(job);
}

void Cluster::check(const WorkloadJob& job, Seconds estimate, std::size_t index) const {
  const auto positive = [](double value) { return value > 0 && value < kNeverVirtual; };
  const double memory = options_.gpu_memory_gib == 0 ? kUnlimited : options_.gpu_memory_gib;
  if (!positive(job.duration) || !positive(estimate) || !(job.arrival >= 0 && job.arrival < kNeverVirtual)) {
    throw std::invalid_argument(
        fmt::format("job {}: arrival must be >= 0, duration and estimate > 0, all finite, got arrival {} s, duration "
                    "{} s, estimate {} s",
                    index, job.arrival, job.duration, estimate));
  }
  if (job.gpus < 1 || job.gpus > gpus_.count() || !(job.memory_gib >= 0 && job.memory_gib <= memory)) {
    throw std::invalid_argument(
        fmt::format("job {} must fit the cluster, got {} GPUs with {} GiB; the cluster has {} with {} GiB", index,
                    job.gpus, job.memory_gib, gpus_.count(), memory));
  }
  if (job.user < 0) {
    throw std::invalid_argument(fmt::format("job {}: user must be >= 0, got {}", index, job.user));
  }
  if (!(job.deadline > 0)) {
    throw std::invalid_argument(fmt::format("job {}: deadline must be > 0, got {} s", index, job.deadline));
  }
  const SplitModel& split = job.split;
  const auto is_share = [](double value) { return value >= 0 && value <= 1; };
  if (!is_share(split.fixed_memory) || !is_share(split.fixed_time) || split.most < 1 || split.most >= 1 << kMaxSplits) {
    throw std::invalid_argument(
        fmt::format("job {}: fixed memory and fixed time must be from 0 to 1 and sub-batches from 1 to {}, got {}, {} "
                    "and {}",
                    index, (1 << kMaxSplits) - 1, split.fixed_memory, split.fixed_time, split.most));
  }
  if (job.model < 0 || job.model >= interference_.models()) {
    throw std::invalid_argument(fmt::format("job {}: model must be in the interference table, got {} of {}", index,
                                            job.model, interference_.models()));
  }
}

Seconds Cluster::run_time(JobId job) const {
  const ClusterJob& entry = jobs_[job];
  return entry.run + (entry.phase == JobPhase::kRunning ? now_ - entry.since : 0);
}

Seconds Cluster::remaining(JobId job) const {
  const ClusterJob& entry = jobs_[job];
  if (!options_.durations_known) {
    Seconds age = kMinAge;
    while (age * kAgeStep <= run_time(job)) {
      age *= kAgeStep;
    }
    return age;
  }
  const Seconds passed = now_ - entry.since - entry.restart_left;
  const Seconds left = entry.work_left - std::max(0.0, passed) * entry.speed;
  const Seconds done = entry.asked.duration - left;
  Seconds estimate = entry.estimate;
  while (estimate <= done) {
    estimate *= 2;
  }
  return estimate - done;
}

Seconds Cluster::ends_at(JobId job) const {
  const ClusterJob& entry = jobs_[job];
  return entry.since + entry.restart_left + entry.work_left / entry.speed;
}

std::optional<PairSplits> Cluster::splits_beside(JobId job, JobId partner) const {
  if (!may_share(job, partner)) {
    return std::nullopt;
  }
  std::array<SplitSize, kMaxSplits> mine;
  std::array<SplitSize, kMaxSplits> theirs;
  return best_splits({remaining(job), sizes_beside(job, partner, mine)},
                     {remaining(partner), sizes_beside(partner, job, theirs)},
                     options_.gpu_memory_gib == 0 ? kUnlimited : options_.gpu_memory_gib);
}

std::span<const SplitSize> Cluster::sizes_beside(JobId job, JobId partner, std::span<SplitSize> sizes) const {
  const ClusterJob& entry = jobs_[job];
  const double beside = ratio(job, partner);
  const bool keeps = options_.keep_splits && entry.phase == JobPhase::kRunning;
  const int most = keeps ? entry.sub_batches : options_.gpu_memory_gib == 0 ? 1 : largest_split(entry);
  std::size_t count = 0;
  for (int pieces = keeps || entry.shared_gpus > 0 ? entry.sub_batches : 1; pieces <= most; pieces *= 2) {
    sizes[count++] = {pieces, beside * split_cost(job, pieces), memory(entry, pieces),
                      cost_without_partner(job, pieces)};
  }
  return sizes.first(count);
}

bool Cluster::fits_beside_partners(JobId job, int sub_batches) const {
  const ClusterJob& entry = jobs_[job];
  return std::all_of(entry.gpus.begin(), entry.gpus.end(), [&](GpuId gpu) {
    const JobId partner = gpus_.partner(gpu, job);
    return partner == kNobody ||
           memory(entry, sub_batches) + memory(jobs_[partner], jobs_[partner].sub_batches) <= options_.gpu_memory_gib;
  });
}

int Cluster::fewest_sub_batches(JobId job) const {
  if (options_.gpu_memory_gib == 0 || jobs_[job].shared_gpus == 0) {
    return 1;  // alone, its batches are whole
  }
  int pieces = 1;
  while (2 * pieces <= largest_split(jobs_[job]) && !fits_beside_partners(job, pieces)) {
    pieces *= 2;
  }
  return pieces;
}

void Cluster::start(JobId job, std::vector<GpuId> gpus, int sub_batches) {
  ClusterJob& entry = jobs_[job];
  settle(entry);
  waiting_.erase(entry.kind, entry.rank, job);
  entry.phase = JobPhase::kRunning;
  entry.started = now_;
  entry.saved_left = entry.work_left;
  entry.place_in_running = running_.size();
  running_.push_back(job);
  entry.gpus = std::move(gpus);
  entry.sub_batches = sub_batches;
  entry.restart_left = entry.preemptions > 0 ? options_.restart_cost : 0;
  std::vector<JobId> touched{job};
  for (const GpuId gpu : entry.gpus) {
    const JobId partner = gpus_.on(gpu)[0];
    gpus_.put(job, gpu);
    if (partner != kNobody) {
      touched.push_back(partner);
    }
  }
  set_speeds(std::move(touched), job);
}

void Cluster::suspend(JobId job, Rank rank) {
  leave(job);
  ClusterJob& entry = jobs_[job];
  ++entry.preemptions;
  enqueue(job, rank);
}

void Cluster::go_back(JobId job) {
  ClusterJob& entry = jobs_[job];
  settle(entry);
  const Seconds done = entry.saved_left - entry.work_left;
  const Seconds lost = std::clamp(std::fmod(done, options_.checkpoint_every), 0.0, done);
  entry.fruitless = lost < done ? 0 : entry.fruitless + 1;
  entry.work_left += lost;
  entry.lost_work += lost;
  ++entry.losses;
}

void Cluster::arrive(JobId job, Rank rank) {
  if (jobs_[job].phase == JobPhase::kHeld) {
    settle(jobs_[job]);
    std::erase(held_, job);
  } else {
    jobs_[job].eligible = now_;
  }
  jobs_[job].since = now_;
  open_deadlines_ += has_deadline(job) ? 1 : 0;
  enqueue(job, rank);
}

void Cluster::hold(JobId job) {
  jobs_[job].since = jobs_[job].eligible = now_;
  jobs_[job].phase = JobPhase::kHeld;
  held_.push_back(job);
}

void Cluster::trust_estimates() {
  options_.record_spans = false;
  spans_.clear();
  const auto trust = [this](JobId job) {
    ClusterJob& entry = jobs_[job];
    const bool runs = entry.phase == JobPhase::kRunning;
    const bool is_over = runs && ends_at(job) < now_ * (1 - kRounding);
    if (options_.durations_known && entry.estimate == entry.asked.duration && !is_over) {
      return;  // to the last bit, because a forecast must not differ from what comes
    }
    const Seconds left = remaining(job);
    settle(entry);
    entry.asked.duration = entry.estimate = entry.asked.duration - entry.work_left + left;
    entry.work_left = left;
  };
  std::for_each(running_.begin(), running_.end(), trust);
  for (JobId job = 0; job < jobs_.size(); ++job) {
    if (jobs_[job].phase == JobPhase::kWaiting) {
      trust(job);
    }
  }
}

void Cluster::count_use(Seconds passed) {
  std::vector<double> gpus(users_->users());
  std::vector<double> gib(users_->users());
  for (const JobId job : running_) {
    const ClusterJob& entry = jobs_[job];
    gpus[user_of(job)] += entry.asked.gpus - entry.shared_gpus / 2.0;  // of a GPU with two jobs, each has half
    gib[user_of(job)] += memory(entry, entry.sub_batches) * entry.asked.gpus;
  }
  const double all_gib = options_.gpu_memory_gib == 0 ? kUnlimited : options_.gpu_memory_gib * gpus_.count();
  for (std::size_t user = 0; user < gpus.size(); ++user) {
    gpus[user] = std::max(gpus[user] / gpus_.count(), gib[user] / all_gib);
  }
  users_->advance(passed, gpus);
}

void Cluster::enqueue(JobId job, Rank rank) {
  ClusterJob& entry = jobs_[job];
  entry.phase = JobPhase::kWaiting;
  entry.rank = rank;
  entry.rank.priority = entry.asked.priority;
  entry.rank.user = 0;  // the queue knows the place of its user, which changes
  waiting_.insert(entry.kind, entry.rank, job);
}

JobProgress Cluster::progress(JobId job) const {
  const ClusterJob& entry = jobs_[job];
  const Seconds passed = entry.phase == JobPhase::kRunning ? now_ - entry.since : 0;
  const Seconds restarting = std::min(entry.restart_left, passed);
  return {entry.work_left - (passed - restarting) * entry.speed,
          entry.restart_left - restarting,
          entry.run + passed,
          entry.preemptions,
          entry.rank,
          entry.phase == JobPhase::kHeld,
          entry.phase == JobPhase::kRunning ? entry.sub_batches : 1,
          entry.deadline_dropped};
}

void Cluster::restore(JobId job, const JobProgress& progress) {
  ClusterJob& entry = jobs_[job];
  entry.work_left = progress.work_left;
  entry.restart_left = progress.restart_left;
  entry.run = progress.run;
  entry.preemptions = progress.preemptions;
  if (progress.deadline_dropped) {
    drop_deadline(job);
  }
}

void Cluster::set_group(JobId job, int group) {
  ClusterJob& entry = jobs_[job];
  const bool waits = entry.phase == JobPhase::kWaiting;
  if (waits) {
    waiting_.erase(entry.kind, entry.rank, job);
  }
  entry.asked.group = group;
  entry.kind = kind_of(entry.asked);
  if (waits) {
    waiting_.insert(entry.kind, entry.rank, job);
  }
}

void Cluster::take_back(JobId job, Seconds seconds) {
  ClusterJob& entry = jobs_[job];
  settle(entry);
  const Seconds idle = std::clamp(seconds, 0.0, now_ - entry.started);
  entry.run -= idle;
  entry.work_left = std::min(entry.asked.duration, entry.work_left + idle * entry.speed);
}

void Cluster::set_ratio(int model, int partner, double ratio) {
  interference_.set(model, partner, ratio);
  set_speeds(running_);
}

void Cluster::end(JobId job) {
  if (jobs_[job].phase == JobPhase::kHeld) {
    settle(jobs_[job]);
    std::erase(held_, job);
  } else {
    open_deadlines_ -= has_deadline(job) ? 1 : 0;
    if (jobs_[job].phase == JobPhase::kWaiting) {
      settle(jobs_[job]);
      waiting_.erase(jobs_[job].kind, jobs_[job].rank, job);
    } else {
      leave(job);
    }
  }
  jobs_[job].phase = JobPhase::kEnded;
  jobs_[job].work_left = 0;
  jobs_[job].ended = now_;
}

void Cluster::leave(JobId job) {
  ClusterJob& entry = jobs_[job];
  settle(entry);
  running_[entry.place_in_running] = running_.back();
  jobs_[running_.back()].place_in_running = entry.place_in_running;
  running_.pop_back();
  std::vector<JobId> touched;
  for (const GpuId gpu : entry.gpus) {
    gpus_.remove(job, gpu);
    if (gpus_.on(gpu)[0] != kNobody) {
      touched.push_back(gpus_.on(gpu)[0]);
    }
  }
  set_speeds(std::move(touched));
  if (options_.record_spans) {
    spans_.push_back({job, entry.started, now_, entry.gpus});
  }
  entry.gpus.clear();
  entry.shared_gpus = 0;
  entry.speed = 0;
}

void Cluster::settle(ClusterJob& job) {
  const Seconds passed = now_ - job.since;
  job.since = now_;
  if (job.phase == JobPhase::kWaiting || job.phase == JobPhase::kHeld) {
    job.waited += passed;
  } else if (job.phase == JobPhase::kRunning) {
    const Seconds restarting = std::min(job.restart_left, passed);
    job.restart_left -= restarting;
    job.work_left -= (passed - restarting) * job.speed;
    job.run += passed;
    job.shared += job.shared_gpus > 0 ? passed : 0;
  }
}

void Cluster::set_speeds(std::vector<JobId> jobs, JobId started) {
  std::sort(jobs.begin(), jobs.end());
  jobs.erase(std::unique(jobs.begin(), jobs.end()), jobs.end());
  for (const JobId job : jobs) {
    ClusterJob& entry = jobs_[job];
    settle(entry);
    entry.shared_gpus = 0;
    double ratio = 1;
    for (const GpuId gpu : entry.gpus) {
      const JobId partner = gpus_.partner(gpu, job);
      if (partner != kNobody) {
        ++entry.shared_gpus;
        ratio = std::max(ratio, interference_.ratio(entry.asked.model, jobs_[partner].asked.model));
      }
    }
    if (job != started && !options_.keep_splits) {
      entry.sub_batches = fewest_sub_batches(job);
    }
    entry.speed = 1 / (ratio * split_cost(job, entry.sub_batches));
    changed_.push_back(job);
  }
}

}  // namespace torchshare
