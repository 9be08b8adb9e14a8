#include "cluster/waiting_queue.h"

#include <algorithm>

namespace torchshare {

WaitingQueue::Kind WaitingQueue::kind_of(const JobRecord& job) {
  const Kinship kinship{job.model, job.gpus, job.memory_gib};
  const auto [entry, is_new] = kinds_.try_emplace(kinship, queues_.size());
  if (is_new) {
    kinships_.push_back(kinship);
    queues_.emplace_back();
  }
  return entry->second;
}

void WaitingQueue::insert(Kind kind, Rank rank, JobId job) {
  queues_[kind].emplace(rank, job);
  ++size_;
}

void WaitingQueue::erase(Kind kind, Rank rank, JobId job) {
  size_ -= queues_[kind].erase({rank, job});
}

std::optional<WaitingQueue::Kind> WaitingQueue::first_kind(const std::vector<bool>& skip) const {
  std::optional<Kind> best;
  for (Kind kind = 0; kind < queues_.size(); ++kind) {
    if (!skip[kind] && !queues_[kind].empty() && (!best || *queues_[kind].begin() < *queues_[*best].begin())) {
      best = kind;
    }
  }
  return best;
}

std::optional<JobId> WaitingQueue::first() const {
  const auto kind = first_kind(std::vector<bool>(queues_.size()));
  return kind ? std::optional(queues_[*kind].begin()->second) : std::nullopt;
}

std::vector<JobId> WaitingQueue::first_of_each_kind(std::size_t count) const {
  std::vector<Queue::value_type> first;
  for (const Queue& queue : queues_) {
    std::copy_n(queue.begin(), std::min(count, queue.size()), std::back_inserter(first));
  }
  std::sort(first.begin(), first.end());
  std::vector<JobId> jobs;
  for (const auto& [rank, job] : first) {
    jobs.push_back(job);
  }
  return jobs;
}

}  // namespace torchshare
