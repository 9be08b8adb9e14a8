#include "model/pace.h"

#include <gtest/gtest.h>

namespace torchshare {
namespace {

using namespace std::chrono_literals;

TEST(Pace, OpensForItsShareOfEachCycle) {
  const Pace pace{.origin = 1s, .cycle = 100ms, .share = 0.3};
  EXPECT_EQ(pace.wait(1s), 0ns);
  EXPECT_EQ(pace.wait(1029ms), 0ns);
  EXPECT_EQ(pace.wait(1030ms), 70ms);
  EXPECT_EQ(pace.wait(1199ms), 1ms);
  EXPECT_EQ(pace.wait(1200ms), 0ns);
}

TEST(Pace, KnowsForHowLongItIsOpen) {
  const Pace pace{.origin = 1s, .cycle = 100ms, .share = 0.3, .until = 2s};
  EXPECT_EQ(pace.open_for(1s), 30ms);
  EXPECT_EQ(pace.open_for(1129ms), 1ms);
  EXPECT_EQ(pace.open_for(1130ms), 0ms);
  EXPECT_GT(pace.open_for(2s), 1h);
  EXPECT_GT((Pace{.share = 1}).open_for(1s), 1h);
  EXPECT_EQ((Pace{.share = 0}).open_for(1s), 0s);
}

TEST(Pace, KnowsHowMuchOfATimeWasOpen) {
  const Pace pace{.origin = 1s, .cycle = 100ms, .share = 0.3};
  EXPECT_EQ(pace.open_within(1s, 1030ms), 30ms);
  EXPECT_EQ(pace.open_within(1030ms, 1100ms), 0ms);
  EXPECT_EQ(pace.open_within(1020ms, 1040ms), 10ms);
  EXPECT_EQ(pace.open_within(1s, 2s), 300ms);
  EXPECT_EQ((Pace{.share = 1}).open_within(1s, 2s), 1s);
  EXPECT_EQ((Pace{.share = 0}).wait(1s), 200ms);
}

TEST(Pace, EndsAtATime) {
  const Pace pace{.origin = 1s, .cycle = 100ms, .share = 0.3, .until = 1250ms};
  EXPECT_EQ(pace.wait(1150ms), 50ms);
  EXPECT_EQ(pace.wait(1240ms), 10ms);
  EXPECT_EQ(pace.wait(1250ms), 0ms);
  EXPECT_EQ(pace.open_within(1s, 1300ms), 60ms + 30ms + 50ms);
}

}  // namespace
}  // namespace torchshare
