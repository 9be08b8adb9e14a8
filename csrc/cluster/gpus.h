#pragma once

#include <array>
#include <set>
#include <vector>

#include "model/job_id.h"

namespace torchshare {

using GpuId = int;
inline constexpr JobId kNobody = static_cast<JobId>(-1);

/// The jobs on each GPU, at most two, and the free GPUs by node.
class Gpus {
 public:
  /// Throws std::invalid_argument unless both are positive and `gpus` is a multiple of `per_node`.
  Gpus(int gpus, int per_node);

  /// Appends a node whose GPUs are not usable yet.
  void add_node();
  /// A GPU that is not usable has no jobs and is not free.
  bool usable(GpuId gpu) const { return usable_[static_cast<std::size_t>(gpu)]; }
  void set_usable(GpuId gpu, bool usable);

  int count() const { return static_cast<int>(slots_.size()); }
  int free() const { return free_; }
  /// GPUs that are not usable.
  int away() const { return away_; }
  /// GPUs with a job.
  int busy() const { return count() - free_ - away_; }
  /// GPUs with exactly one job.
  int half_free() const { return half_free_; }
  const std::array<JobId, 2>& on(GpuId gpu) const { return slots_[static_cast<std::size_t>(gpu)]; }
  /// The other job on `gpu`, or kNobody.
  JobId partner(GpuId gpu, JobId job) const { return on(gpu)[0] == job ? on(gpu)[1] : on(gpu)[0]; }

  /// `count` free GPUs on as few nodes as possible: on the fullest node with enough free GPUs, else on whole nodes
  /// first. `count` must be at most `free()`.
  std::vector<GpuId> pick_free(int count) const;

  void put(JobId job, GpuId gpu);
  void remove(JobId job, GpuId gpu);

 private:
  using Node = int;
  std::set<Node>& nodes_with_free(int free) { return nodes_with_free_[static_cast<std::size_t>(free)]; }
  const std::set<Node>& nodes_with_free(int free) const { return nodes_with_free_[static_cast<std::size_t>(free)]; }
  void count_free(Node node, int change);

  int per_node_;
  int free_;
  int away_ = 0;
  int half_free_ = 0;
  std::vector<std::array<JobId, 2>> slots_;
  std::vector<bool> usable_;
  std::vector<int> free_on_node_;
  std::vector<std::set<Node>> nodes_with_free_;  // [k]: the nodes with k free GPUs
};

}  // namespace torchshare
