#include "planner/pair_splits.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "model/pair.h"

namespace torchshare {
namespace {

TEST(PairSplits, AreTheBestOfAllThatFit) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> remaining(1, 100);
  std::uniform_real_distribution<double> ratio(1, 2);
  std::uniform_real_distribution<double> cost(0, 0.4);
  std::uniform_real_distribution<double> memory(1, 12);
  int split = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<SplitSize> sizes[2];
    for (std::vector<SplitSize>& each : sizes) {
      const double slowdown = ratio(random);
      const double further = cost(random);
      const double whole = memory(random);
      for (int pieces = 1; pieces <= 8; pieces *= 2) {
        each.push_back({pieces, slowdown * (1 + further * (pieces - 1)), 0.5 + whole / pieces});
      }
    }
    const double a = remaining(random);
    const double b = remaining(random);
    const auto found = best_splits({a, sizes[0]}, {b, sizes[1]}, 10);
    double least = 1e300;
    for (const SplitSize& mine : sizes[0]) {
      for (const SplitSize& theirs : sizes[1]) {
        if (mine.memory + theirs.memory <= 10) {
          const PairEnds ends = ends_when_sharing({a, mine.slowdown}, {b, theirs.slowdown});
          least = std::min(least, (ends.a + ends.b) / 2);
        }
      }
    }
    ASSERT_TRUE(found) << "eight sub-batches of both always fit";
    EXPECT_LE(found->a.memory + found->b.memory, 10);
    EXPECT_NEAR(found->value, least, 1e-9 * least) << "round " << round;
    split += found->a.sub_batches > 1 || found->b.sub_batches > 1 ? 1 : 0;
  }
  EXPECT_GT(split, 100);
  EXPECT_LT(split, 490);
}

TEST(PairSplits, AreNoneIfNothingFits) {
  const std::vector<SplitSize> sizes{{1, 1, 8}, {2, 1, 6}};
  EXPECT_FALSE(best_splits({1, sizes}, {1, sizes}, 11));
  EXPECT_EQ(best_splits({1, sizes}, {1, sizes}, 14)->a.sub_batches, 1) << "of equal ones the first";
}

}  // namespace
}  // namespace torchshare
