#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/pair_planner.h"

namespace torchshare {

/// The interference ratios of two jobs beside each other: [k] in 2^k sub-batches. Empty: they cannot share.
struct QueuedPair {
  std::size_t a;
  std::size_t b;
  std::vector<double> a_ratios;
  std::vector<double> b_ratios;
};

struct QueueOptions {
  std::optional<double> memory = {};  ///< bytes of the device; empty: ignored
  std::uint64_t max_nodes = 2'000'000;
};

/// A job for a while, alone or beside a partner. Seconds from now.
struct QueuePiece {
  std::size_t job;
  std::optional<std::size_t> partner;
  int sub_batches;
  double begin;
  double end;
};

struct QueuePlan {
  std::vector<QueuePiece> pieces = {};  ///< in order of their begin
  std::vector<double> ends = {};        ///< by job
  bool exact = true;                    ///< false: the search was cut short, this is the best found

  double average() const;
};

/// The order and the pairs with the least average completion time, for jobs that all wait for one device on which at
/// most two run at a time; a job that has begun runs to its end. A depth-first search over which job runs next, alone
/// or beside which; pruned where two devices without interference could not beat the best so far. Each pair shares in
/// the sub-batches with the best value of SJF-BSBF that fit the memory. Throws std::invalid_argument for invalid
/// numbers, and if a job does not fit alone.
QueuePlan plan_queue(const std::vector<PlannedJob>& jobs, const std::vector<QueuedPair>& pairs,
                     const QueueOptions& options);

}  // namespace torchshare
