#pragma once

#include <cstddef>
#include <vector>

#include "model/job_id.h"

namespace torchshare {

/// For each job, the jobs whose ends it waits for: its predecessors. Empty if no job waits for another.
using Predecessors = std::vector<std::vector<JobId>>;

/// The jobs of a cycle, in which each waits for the next and the last for the first; empty if there is none. All must
/// be jobs of `predecessors`.
std::vector<JobId> find_cycle(const Predecessors& predecessors);

/// Counts what each job still waits for before it is eligible: its own arrival, and the ends of its predecessors.
class Dependencies {
 public:
  /// No job waits for another.
  Dependencies() = default;
  /// Throws std::invalid_argument unless there is one entry per job, or none, each predecessor is a job, and there is
  /// no cycle.
  Dependencies(const Predecessors& predecessors, std::size_t jobs);

  /// One of the events that `job` waits for has happened; returns whether it was the last.
  bool release(JobId job) { return left_.empty() || --left_[job] == 0; }
  /// The jobs that wait for the end of `job`.
  const std::vector<JobId>& successors(JobId job) const { return successors_.empty() ? none_ : successors_[job]; }
  /// For each job, the greatest sum of `work` over a chain of jobs behind it, without itself. Called before any
  /// release.
  std::vector<double> longest_behind(const std::vector<double>& work) const;

 private:
  std::vector<std::size_t> left_;
  std::vector<std::vector<JobId>> successors_;
  std::vector<JobId> none_;
};

}  // namespace torchshare
