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
  std::optional<double> memory = {};  ///< bytes of the device; empty: unlimited
  std::uint64_t max_nodes = 2'000'000;
};

/// An interval in which a job runs, alone or beside a partner. Times count from now.
struct QueuePiece {
  std::size_t job;
  std::optional<std::size_t> partner;
  int sub_batches;
  Seconds begin;
  Seconds end;
};

struct QueuePlan {
  std::vector<QueuePiece> pieces = {};  ///< in order of their begin
  std::vector<Seconds> ends = {};       ///< by job
  bool exact = true;                    ///< false: the search was cut short; the plan may not be optimal

  Seconds average() const;
};

/// The order and the pairs with the least average completion time, for jobs that wait for one device on which at most
/// two run at a time; a started job runs to its end. A depth-first search over the next job and its partner, pruned
/// with a lower bound: two devices without interference. Each pair shares in the sub-batches with the best value of
/// SJF-BSBF that fit the memory. Throws std::invalid_argument for invalid numbers, and if a job does not fit alone.
QueuePlan plan_queue(const std::vector<PlannedJob>& jobs, const std::vector<QueuedPair>& pairs,
                     const QueueOptions& options);

}  // namespace torchshare
