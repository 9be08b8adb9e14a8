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

TEST(Pace, KnowsHowMuchOfATimeWasOpen) {
  const Pace pace{.origin = 1s, .cycle = 100ms, .share = 0.3};
  EXPECT_EQ(pace.open_within(1s, 1030ms), 30ms);
  EXPECT_EQ(pace.open_within(1030ms, 1100ms), 0ms);
  EXPECT_EQ(pace.open_within(1020ms, 1040ms), 10ms);
  EXPECT_EQ(pace.open_within(1s, 2s), 300ms);
  EXPECT_EQ((Pace{.share = 1}).open_within(1s, 2s), 1s);
  EXPECT_EQ((Pace{.share = 0}).wait(1s), 200ms);
}

}  // namespace
}  // namespace torchshare
