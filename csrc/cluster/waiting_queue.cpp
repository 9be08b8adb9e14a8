#include "cluster/waiting_queue.h"

#include <algorithm>

namespace torchshare {

WaitingQueue::Kind WaitingQueue::kind_of(const WorkloadJob& job) {
  const Kinship kinship{job.model, job.gpus, job.memory_gib, job.group, job.split, job.user};
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

void WaitingQueue::set_places(std::vector<int> places) {
  if (places == places_) {
    return;
  }
  places_ = std::move(places);
  heads_.clear();
  for (Kind kind = 0; kind < queues_.size(); ++kind) {
    add_head(kind);
  }
}

Rank WaitingQueue::placed(Kind kind, Rank rank) const {
  rank.user = places_.empty() ? 0 : places_[static_cast<std::size_t>(kinships_[kind].user)];
  return rank;
}

void WaitingQueue::add_head(Kind kind) {
  if (!queues_[kind].empty()) {
    const auto& [rank, job] = *queues_[kind].begin();
    heads_.emplace(placed(kind, rank), job, kind);
  }
  ++changes_;
}

void WaitingQueue::drop_head(Kind kind) {
  if (!queues_[kind].empty()) {
    const auto& [rank, job] = *queues_[kind].begin();
    heads_.erase({placed(kind, rank), job, kind});
  }
}

bool WaitingQueue::Kinship::asks_for_no_less_than(const Kinship& other) const {
  if (model != other.model || user != other.user || !(group == other.group || group == kAlone) || gpus < other.gpus ||
      split.most > other.split.most) {
    return false;
  }
  for (int pieces = 1; pieces <= split.most; pieces *= 2) {
    if (memory_gib * split.memory(pieces) < other.memory_gib * other.split.memory(pieces) ||
        split.time(pieces) < other.split.time(pieces)) {
      return false;
    }
  }
  return true;
}

bool WaitingQueue::asks_for_no_less(Kind kind, const std::vector<Kind>& refused) const {
  return std::any_of(refused.begin(), refused.end(),
                     [&](Kind other) { return kinships_[kind].asks_for_no_less_than(kinships_[other]); });
}

std::optional<JobId> WaitingQueue::first() const {
  return heads_.empty() ? std::nullopt : std::optional(std::get<JobId>(*heads_.begin()));
}

std::vector<JobId> WaitingQueue::first_of_each_kind(std::size_t count, int gpus) const {
  std::vector<std::pair<Rank, JobId>> first;
  for (Kind kind = 0; kind < queues_.size(); ++kind) {
    if (kinships_[kind].gpus > gpus) {
      continue;
    }
    const Queue& queue = queues_[kind];
    std::transform(queue.begin(), std::next(queue.begin(), static_cast<std::ptrdiff_t>(std::min(count, queue.size()))),
                   std::back_inserter(first),
                   [&](const auto& waiting) { return std::pair(placed(kind, waiting.first), waiting.second); });
  }
  std::sort(first.begin(), first.end());
  std::vector<JobId> jobs;
  for (const auto& [rank, job] : first) {
    jobs.push_back(job);
  }
  return jobs;
}

}  // namespace torchshare
