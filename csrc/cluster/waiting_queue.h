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

/// The order of waiting jobs: by priority, then by the place of their users, then by level, then by value, lower first.
/// The rank of a waiting job does not change. Policies set level and value.
struct Rank {
  int level = 0;
  double value = 0;
  int priority = 0;
  int user = 0;
  auto operator<=>(const Rank& other) const {
    return std::tuple(before_all(), level, value) <=> std::tuple(other.before_all(), other.level, other.value);
  }
  bool operator==(const Rank&) const = default;

 private:
  /// Priority and user in one number: ranks are compared often.
  std::int64_t before_all() const { return (std::int64_t{priority} << 32) + user; }
};

/// The waiting jobs, grouped into kinds with equal requests. A refused job rules out the others of its kind, and all
/// jobs that ask for no less: that request at least as many GPUs for the same model, need at least as much memory and
/// time in each number of sub-batches that they may run in, and share with the same jobs or with none. So a decision
/// tries a few kinds instead of all jobs.
///
/// For shortest job first this changes no decision. It refuses a job for lack of GPUs or of memory beside others, or,
/// if it is SJF-BSBF, because `share_now` is not less than `one_after_other`. The difference of these two never falls
/// with the new job's remaining time nor with a slowdown, and jobs ranked behind are not shorter. Where jobs ranked
/// behind may be shorter (PairSrsf ages jobs, PairEdf ranks by deadline; priorities), or gain by sharing where shorter
/// ones and ones of fewer GPUs do not (PairSrsf), one that would gain by sharing may have to wait for a later decision.
class WaitingQueue {
 public:
  using Kind = std::size_t;

  /// The kind of a job.
  Kind kind_of(const WorkloadJob& job);

  void insert(Kind kind, Rank rank, JobId job);
  void erase(Kind kind, Rank rank, JobId job);
  /// The place of each user among the users, in which their jobs are offered. Without, all users are one.
  void set_places(std::vector<int> places);
  std::size_t size() const { return size_; }

  /// Offers waiting jobs to `take`, the first of each kind in order of rank, until none is taken. `take(job)` returns
  /// whether it removed the job from the queue; it may also add others.
  template <typename Take>
  void offer(const Take& take);

  /// The first job by rank.
  std::optional<JobId> first() const;
  /// The first `count` jobs of each kind that requests at most `gpus` GPUs, by rank.
  std::vector<JobId> first_of_each_kind(std::size_t count, int gpus) const;

 private:
  using Queue = std::set<std::pair<Rank, JobId>>;

  struct Kinship {
    int model;
    int gpus;
    double memory_gib;
    int group;
    SplitModel split;
    int user;
    auto operator<=>(const Kinship&) const = default;
    bool asks_for_no_less_than(const Kinship& other) const;
  };

  using Head = std::tuple<Rank, JobId, Kind>;

  /// The rank of a job with the place of its user.
  Rank placed(Kind kind, Rank rank) const;
  void add_head(Kind kind);
  void drop_head(Kind kind);
  /// Whether a job of `kind` asks for no less than one of those that were refused.
  bool asks_for_no_less(Kind kind, const std::vector<Kind>& refused) const;

  std::map<Kinship, Kind> kinds_;
  std::vector<Kinship> kinships_;  // of each kind
  std::vector<Queue> queues_;      // of each kind
  std::vector<int> places_;        // of users
  std::set<Head> heads_;           // the first job of each kind that has any
  std::size_t size_ = 0;
  std::uint64_t changes_ = 0;
};

template <typename Take>
void WaitingQueue::offer(const Take& take) {
  std::vector<bool> skipped(queues_.size());
  std::vector<Kind> refused;
  auto next = heads_.begin();
  while (next != heads_.end()) {
    const auto [rank, job, kind] = *next;
    const std::uint64_t before = changes_;
    skipped[kind] = skipped[kind] || asks_for_no_less(kind, refused);
    if (!skipped[kind] && !take(job)) {
      skipped[kind] = true;
      refused.push_back(kind);
    }
    next = changes_ == before ? std::next(next) : heads_.begin();
  }
}

}  // namespace torchshare
