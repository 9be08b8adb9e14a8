#include "cluster/waiting_queue.h"

#include <algorithm>

namespace torchshare {

WaitingQueue::Kind WaitingQueue::kind_of(const WorkloadJob& job) {
  const Kinship kinship{job.model, job.gpus, job.memory_gib, job.group, job.split};
  const auto [entry, is_new] = kinds_.try_emplace(kinship, queues_.size());
  if (is_new) {
    kinships_.push_back(kinship);
    queues_.emplace_back();
  }
  return entry->second;
}

void WaitingQueue::insert(Kind kind, Rank rank, JobId job) {
  drop_head(kind);
  queues_[kind].emplace(rank, job);
  add_head(kind);
  ++size_;
}

void WaitingQueue::erase(Kind kind, Rank rank, JobId job) {
  drop_head(kind);
  size_ -= queues_[kind].erase({rank, job});
  add_head(kind);
}

void WaitingQueue::add_head(Kind kind) {
  if (!queues_[kind].empty()) {
    const auto& [rank, job] = *queues_[kind].begin();
    heads_.emplace(rank, job, kind);
  }
  ++changes_;
}

void WaitingQueue::drop_head(Kind kind) {
  if (!queues_[kind].empty()) {
    const auto& [rank, job] = *queues_[kind].begin();
    heads_.erase({rank, job, kind});
  }
}

void WaitingQueue::refuse(Kind kind, std::vector<bool>& refused) const {
  const Kinship& asked = kinships_[kind];
  const auto ours = kinds_.find(asked);
  const auto apply = [&](const auto& entry) {
    refused[entry.second] = refused[entry.second] || entry.first.asks_for_no_less_than(asked);
  };
  for (auto other = ours; other != kinds_.end() && other->first.model == asked.model; ++other) {
    apply(*other);
  }
  for (auto other = std::make_reverse_iterator(ours); other != kinds_.rend() && other->first.model == asked.model;
       ++other) {
    apply(*other);
  }
}

std::optional<JobId> WaitingQueue::first() const {
  return heads_.empty() ? std::nullopt : std::optional(std::get<JobId>(*heads_.begin()));
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
