#pragma once

#include <optional>
#include <span>

namespace torchshare {

/// What a job does beside another in some number of sub-batches.
struct SplitSize {
  int sub_batches;
  double slowdown;   ///< step time beside the other, in these sub-batches / step time alone in its fewest
  double memory;     ///< peak, in any unit both jobs use
  double after = 1;  ///< step time once the other has ended / step time alone: > 1 if it stays in these sub-batches
};

/// A job that could share.
struct SplittableJob {
  double remaining;                  ///< time that it still needs alone
  std::span<const SplitSize> sizes;  ///< the numbers of sub-batches that it may run in
};

/// The sub-batches of two jobs that share, and the average completion time of the two, counted from now.
struct PairSplits {
  SplitSize a;
  SplitSize b;
  double value;
};

/// Tries every two numbers of sub-batches with which the jobs fit into `memory` together, and returns those with which
/// sharing from now on has the least average completion time; of equal ones the first. Empty if none fit.
std::optional<PairSplits> best_splits(const SplittableJob& a, const SplittableJob& b, double memory);

}  // namespace torchshare
