#include "model/pair.h"

namespace torchshare {

PairEnds ends_when_sharing(const PairJob& a, const PairJob& b) {
  const double a_shared = a.ratio * a.remaining;
  const double b_shared = b.ratio * b.remaining;
  // The shorter job ends first. By then the longer one has done that time / ratio of its work; it does the rest alone.
  if (a_shared <= b_shared) {
    return {a_shared, a_shared + b.remaining - a_shared / b.ratio};
  }
  return {b_shared + a.remaining - b_shared / a.ratio, b_shared};
}

double share_now(const PairJob& a, const PairJob& b) {
  const PairEnds ends = ends_when_sharing(a, b);
  return (ends.a + ends.b) / 2;
}

double one_after_other(const PairJob& first, const PairJob& second) {
  return first.remaining + second.remaining / 2;
}

}  // namespace torchshare
