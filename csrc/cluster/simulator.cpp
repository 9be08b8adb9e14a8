#include "cluster/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "cluster/forecast.h"

namespace torchshare {
namespace {

constexpr int kMostFruitless = 1000;

}  // namespace

Simulator::Simulator(Cluster cluster, std::unique_ptr<ClusterPolicy> policy, const SimulatorOptions& options)
    : cluster_(std::move(cluster)),
      policy_(std::move(policy)),
      dependencies_(options.after, cluster_.jobs()),
      failures_(options.failures),
      outages_(static_cast<std::size_t>(cluster_.gpus().count())),
      record_usage_(options.record_usage) {
  for (JobId job = 0; job < cluster_.jobs(); ++job) {
    events_.push({cluster_.job(job).asked.arrival, What::kArrival, job});
  }
  if (failures_.gpus() > cluster_.gpus().count()) {
    throw std::invalid_argument(fmt::format("failures must be of the cluster's {} GPUs, got GPU {}",
                                            cluster_.gpus().count(), failures_.gpus() - 1));
  }
  if (cluster_.options().rank_by_path) {
    std::vector<double> work;
    for (JobId job = 0; job < cluster_.jobs(); ++job) {
      work.push_back(cluster_.remaining_service(job));
    }
    cluster_.set_behind(dependencies_.longest_behind(work));
  }
  plan_failure();
}

bool Simulator::step() {
  if (ended_ == cluster_.jobs()) {
    return false;
  }
  if (events_.empty() && cluster_.gpus().away() > 0 && cluster_.waiting().size() > 0) {
    const JobId job = *cluster_.waiting().first();
    throw std::runtime_error(
        fmt::format("job {} waits for ever: it needs {} GPUs, and {} of {} have left and do not return", job,
                    cluster_.job(job).asked.gpus, cluster_.gpus().away(), cluster_.gpus().count()));
  }
  if (events_.empty()) {
    throw std::logic_error(fmt::format("deadlock: {} jobs wait and no event is pending", cluster_.waiting().size()));
  }
  const Seconds now = events_.top().time;
  advance(now);
  bool changed = false;
  while (!events_.empty() && events_.top().time == now) {
    const Event event = events_.top();
    events_.pop();
    changed |= handle(event, changed);
  }
  if (std::exchange(deadline_ended_, false)) {
    admit_held(cluster_, *policy_);
  }
  if (changed) {
    cluster_.order_users();
    policy_->schedule(cluster_);
    plan_next();
  }
  return true;
}

void Simulator::advance(Seconds now) {
  busy_gpu_seconds_ += (now - cluster_.now()) * cluster_.gpus().busy();
  away_gpu_seconds_ += (now - cluster_.now()) * cluster_.gpus().away();
  cluster_.advance(now);
}

bool Simulator::handle(const Event& event, bool changed) {
  if (event.what == What::kArrival) {
    if (!dependencies_.release(event.job)) {
      return false;
    }
    const bool waits = admit(cluster_, *policy_, event.job, changed);
    if (cluster_.job(event.job).phase == JobPhase::kRejected) {
      count_rejected(event.job);
    }
    return waits;
  }
  if (event.what == What::kFailure) {
    fail();
  } else if (event.what == What::kReturn) {
    if (--outages_[event.job] > 0) {
      return false;
    }
    cluster_.set_usable(static_cast<GpuId>(event.job), true);
  } else if (event.what == What::kEnd) {
    // The job's speed has changed since this event was scheduled, so it ends at another time.
    if (cluster_.job(event.job).phase != JobPhase::kRunning || cluster_.ends_at(event.job) > event.time) {
      return false;
    }
    cluster_.end(event.job);
    deadline_ended_ |= cluster_.has_deadline(event.job);
    ++ended_;
    for (const JobId next : dependencies_.successors(event.job)) {
      events_.push({event.time, What::kArrival, next});  // after all ends of this instant, in order with the arrivals
    }
  }
  return true;
}

void Simulator::count_rejected(JobId job) {
  std::vector<JobId> rejected{job};
  while (!rejected.empty()) {
    ++ended_;
    const std::vector<JobId>& successors = dependencies_.successors(rejected.back());
    rejected.pop_back();
    for (const JobId next : successors) {
      if (cluster_.job(next).phase != JobPhase::kRejected) {
        cluster_.reject(next);
        rejected.push_back(next);
      }
    }
  }
}

void Simulator::plan_failure() {
  if (const std::optional<Outage> next = failures_.next()) {
    outage_ = *next;
    events_.push({outage_.begin, What::kFailure, kNobody});
  }
}

void Simulator::fail() {
  for (GpuId gpu = outage_.first; gpu < outage_.first + outage_.gpus; ++gpu) {
    ++outages_[static_cast<std::size_t>(gpu)];
    lose(gpu);
    if (outage_.end < kNeverVirtual) {
      events_.push({outage_.end, What::kReturn, static_cast<JobId>(gpu)});
    }
  }
  plan_failure();
}

void Simulator::lose(GpuId gpu) {
  while (cluster_.gpus().on(gpu)[0] != kNobody) {
    const JobId job = cluster_.gpus().on(gpu)[0];
    cluster_.go_back(job);
    if (cluster_.job(job).fruitless >= kMostFruitless) {
      throw std::runtime_error(
          fmt::format("job {} was interrupted {} times since its last checkpoint", job, kMostFruitless));
    }
    cluster_.suspend(job, policy_->rank(cluster_, job));
  }
  cluster_.set_usable(gpu, false);
}

void Simulator::plan_next() {
  const Seconds now = cluster_.now();
  for (const JobId job : cluster_.take_changed()) {
    if (cluster_.job(job).phase == JobPhase::kRunning) {
      events_.push({std::max(now, cluster_.ends_at(job)), What::kEnd, job});
    }
  }
  const Seconds look = policy_->look_again(cluster_);
  if (look < next_look_ || next_look_ <= now) {
    next_look_ = look;
    if (look < kNeverVirtual) {
      events_.push({look, What::kLook, kNobody});
    }
  }
  if (record_usage_) {
    const Gpus& gpus = cluster_.gpus();
    usage_.push_back({now, gpus.busy(), gpus.busy() - gpus.half_free(), cluster_.waiting().size()});
  }
}

}  // namespace torchshare
