#pragma once

#include <compare>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "cluster/workload_job.h"
#include "model/job_id.h"

namespace torchshare {

/// The order of waiting jobs: by priority, then by level, then by value, lower first. The rank of a waiting job does
/// not change. Policies set level and value.
struct Rank {
  int level = 0;
  double value = 0;
  int priority = 0;
  auto operator<=>(const Rank& other) const {
    return std::tie(priority, level, value) <=> std::tie(other.priority, other.level, other.value);
  }
  bool operator==(const Rank&) const = default;
};

/// The waiting jobs, grouped into kinds with equal requests. If the first job of a kind does not fit, no other of its
/// kind fits, and no job ranked behind it that requests at least as many GPUs and as much memory for the same model
/// with the same sub-batches, to share with the same jobs or with none. So a decision considers a few kinds instead of
/// all jobs.
class WaitingQueue {
 public:
  using Kind = std::size_t;

  /// The kind of a job.
  Kind kind_of(const WorkloadJob& job);

  void insert(Kind kind, Rank rank, JobId job);
  void erase(Kind kind, Rank rank, JobId job);
  std::size_t size() const { return size_; }

  /// Offers waiting jobs to `take`, the first of each kind in order of rank, until none is taken. `take(job)` returns
  /// whether it removed the job from the queue; it may also add others.
  template <typename Take>
  void offer(const Take& take);

  /// The first job by rank.
  std::optional<JobId> first() const;
  /// The first `count` jobs of each kind, by rank.
  std::vector<JobId> first_of_each_kind(std::size_t count) const;

 private:
  using Queue = std::set<std::pair<Rank, JobId>>;

  struct Kinship {
    int model;
    int gpus;
    double memory_gib;
    int group;
    SplitModel split;
    auto operator<=>(const Kinship&) const = default;
    bool asks_for_no_less_than(const Kinship& other) const {
      return model == other.model && split == other.split && (group == other.group || group == kAlone) &&
             gpus >= other.gpus && memory_gib >= other.memory_gib;
    }
  };

  using Head = std::tuple<Rank, JobId, Kind>;

  void add_head(Kind kind);
  void drop_head(Kind kind);
  /// After a job of `kind` was refused, also those that ask for no less.
  void refuse(Kind kind, std::vector<bool>& refused) const;

  std::map<Kinship, Kind> kinds_;  // those of a model are neighbours
  std::vector<Kinship> kinships_;  // of each kind
  std::vector<Queue> queues_;      // of each kind
  std::set<Head> heads_;           // the first job of each kind that has any
  std::size_t size_ = 0;
  std::uint64_t changes_ = 0;
};

template <typename Take>
void WaitingQueue::offer(const Take& take) {
  std::vector<bool> refused(queues_.size());
  auto next = heads_.begin();
  while (next != heads_.end()) {
    const auto [rank, job, kind] = *next;
    const std::uint64_t before = changes_;
    if (!refused[kind] && !take(job)) {
      refuse(kind, refused);
    }
    next = changes_ == before ? std::next(next) : heads_.begin();
  }
}

}  // namespace torchshare
