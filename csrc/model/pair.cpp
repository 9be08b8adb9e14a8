#include "model/pair.h"

#include <tuple>

namespace torchshare {

double share_now(const PairJob& a, const PairJob& b) {
  const double a_shared = a.ratio * a.remaining;
  const double b_shared = b.ratio * b.remaining;
  const auto& [longer, overlap] = a_shared >= b_shared ? std::tuple(a, b_shared) : std::tuple(b, a_shared);
  // The shorter ends at `overlap`; the longer has then done overlap / ratio of its work and does the rest alone.
  const double longer_ends = overlap + longer.remaining - overlap / longer.ratio;
  return (overlap + longer_ends) / 2;
}

double one_after_other(const PairJob& first, const PairJob& second) {
  return first.remaining + second.remaining / 2;
}

}  // namespace torchshare
