#include "model/pair.h"

namespace torchshare {
namespace {

/// The end of the longer job. By the end of the shorter one it has done that time / ratio of its work; it does the rest
/// without the other. An `after` of 1 does not change the rounding, which decides ties at a ratio of 1.5.
double longer_ends(const PairJob& job, double shorter_ends) {
  const double done = shorter_ends / job.ratio;
  return shorter_ends + job.remaining - done + (job.after - 1) * (job.remaining - done);
}

}  // namespace

PairEnds ends_when_sharing(const PairJob& a, const PairJob& b) {
  const double a_shared = a.ratio * a.remaining;
  const double b_shared = b.ratio * b.remaining;
  if (a_shared <= b_shared) {
    return {a_shared, longer_ends(b, a_shared)};
  }
  return {longer_ends(a, b_shared), b_shared};
}

double share_now(const PairJob& a, const PairJob& b) {
  const PairEnds ends = ends_when_sharing(a, b);
  return (ends.a + ends.b) / 2;
}

double one_after_other(const PairJob& first, const PairJob& second) {
  return first.remaining + second.remaining / 2;
}

}  // namespace torchshare
