#include "cluster/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace torchshare {
namespace {

using ::testing::ElementsAre;

void fill(Gpus& gpus, std::initializer_list<GpuId> ids, JobId job = 0) {
  for (const GpuId gpu : ids) {
    gpus.put(job, gpu);
  }
}

TEST(Gpus, PicksTheTightestNodeThatHasRoom) {
  Gpus gpus(12, 4);
  fill(gpus, {0, 4, 5, 8, 9, 10});
  EXPECT_THAT(gpus.pick_free(1), ElementsAre(11));
  EXPECT_THAT(gpus.pick_free(2), ElementsAre(6, 7));
  EXPECT_THAT(gpus.pick_free(3), ElementsAre(1, 2, 3));
}

TEST(Gpus, PicksWholeNodesFirstAndTheTightestForTheRest) {
  Gpus gpus(16, 4);
  fill(gpus, {12, 13, 4});
  EXPECT_THAT(gpus.pick_free(6), ElementsAre(0, 1, 2, 3, 14, 15));
  EXPECT_THAT(gpus.pick_free(10), ElementsAre(0, 1, 2, 3, 8, 9, 10, 11, 14, 15));
  EXPECT_EQ(gpus.pick_free(13).size(), 13U);
}

TEST(Gpus, SpreadsOverNodesWhenItMust) {
  Gpus gpus(8, 4);
  fill(gpus, {0, 1, 4, 5});
  EXPECT_THAT(gpus.pick_free(3), ElementsAre(2, 3, 6));
}

TEST(Gpus, CountsFreeAndHalfFree) {
  Gpus gpus(4, 2);
  EXPECT_EQ(gpus.free(), 4);
  gpus.put(7, 1);
  gpus.put(8, 1);
  gpus.put(8, 2);
  EXPECT_EQ(gpus.free(), 2);
  EXPECT_EQ(gpus.half_free(), 1);
  EXPECT_EQ(gpus.partner(1, 7), 8U);
  EXPECT_EQ(gpus.partner(2, 8), kNobody);
  gpus.remove(7, 1);
  EXPECT_EQ(gpus.on(1)[0], 8U);
  EXPECT_EQ(gpus.half_free(), 2);
  gpus.remove(8, 1);
  gpus.remove(8, 2);
  EXPECT_EQ(gpus.free(), 4);
  EXPECT_EQ(gpus.half_free(), 0);
}

TEST(Gpus, RefusesInvalidClusters) {
  EXPECT_THROW(Gpus(0, 4), std::invalid_argument);
  EXPECT_THROW(Gpus(6, 4), std::invalid_argument);
  EXPECT_THROW(Gpus(4, 0), std::invalid_argument);
}

}  // namespace
}  // namespace torchshare
