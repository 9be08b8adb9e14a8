#pragma once

namespace torchshare {

/// One of two jobs that could share a GPU.
struct PairJob {
  double remaining;  ///< time it still needs alone, in any unit both use
  double ratio;      ///< its interference ratio beside the other, >= 1
  double after = 1;  ///< its step time once the other has ended, relative to that alone: > 1 if it stays split
};

struct PairEnds {
  double a;
  double b;
};

/// The ends of both, counted from now, if they run together until one ends and the other continues without it.
PairEnds ends_when_sharing(const PairJob& a, const PairJob& b);

/// Average completion time of the two, counted from now, if they share from now on. SJF-BSBF (arXiv 2407.13088),
/// equation for a sharing time point of 0.
double share_now(const PairJob& a, const PairJob& b);

/// The same if `first` runs alone and `second` after it.
double one_after_other(const PairJob& first, const PairJob& second);

}  // namespace torchshare
