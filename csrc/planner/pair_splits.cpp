#include "planner/pair_splits.h"

#include "model/pair.h"

namespace torchshare {

std::optional<PairSplits> best_splits(const SplittableJob& a, const SplittableJob& b, double memory) {
  std::optional<PairSplits> best;
  for (const SplitSize& mine : a.sizes) {
    for (const SplitSize& theirs : b.sizes) {
      if (mine.memory + theirs.memory > memory) {
        continue;
      }
      const double value =
          share_now({a.remaining, mine.slowdown, mine.after}, {b.remaining, theirs.slowdown, theirs.after});
      if (!best || value < best->value) {
        best = PairSplits{mine, theirs, value};
      }
    }
  }
  return best;
}

}  // namespace torchshare
