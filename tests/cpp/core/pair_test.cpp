#include "model/pair.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace torchshare {
namespace {

/// The same, simulated in small pieces of work.
double share_now_by_steps(PairJob a, PairJob b, double step) {
  double now = 0;
  double ends = 0;
  while (a.remaining > 0 || b.remaining > 0) {
    const bool both = a.remaining > 0 && b.remaining > 0;
    now += step;
    for (PairJob* job : {&a, &b}) {
      if (job->remaining > 0) {
        job->remaining -= step / (both ? job->ratio : job->after);
        ends += job->remaining <= 0 ? now : 0;
      }
    }
  }
  return ends / 2;
}

TEST(Pair, SharingNowIsWhatSteppingThroughTimeGives) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> remaining(1, 10);
  std::uniform_real_distribution<double> ratio(1, 3);
  for (int i = 0; i < 100; ++i) {
    const PairJob a{remaining(random), ratio(random), i % 2 == 0 ? 1 : ratio(random)};
    const PairJob b{remaining(random), ratio(random), i % 2 == 0 ? 1 : ratio(random)};
    EXPECT_NEAR(share_now(a, b), share_now_by_steps(a, b, 1e-3), 5e-3);
    EXPECT_DOUBLE_EQ(share_now(a, b), share_now(b, a));
  }
}

TEST(Pair, ForEqualRatiosSharingBeatsTheBestOrderUpToOneAndAHalf) {
  for (const double shorter : {0.1, 1.0, 7.0, 10.0}) {
    for (const double ratio : {1.0, 1.2, 1.49, 1.51, 2.0}) {
      const PairJob a{shorter, ratio};
      const PairJob b{10, ratio};
      const double in_turn = std::min(one_after_other(a, b), one_after_other(b, a));
      EXPECT_EQ(share_now(a, b) < in_turn, ratio < 1.5) << shorter << " " << ratio;
    }
  }
}

TEST(Pair, OneAfterTheOtherTakesTheSumForTheSecond) {
  EXPECT_DOUBLE_EQ(one_after_other({4, 9}, {2, 9}), (4 + 6) / 2.0);
}

}  // namespace
}  // namespace torchshare
