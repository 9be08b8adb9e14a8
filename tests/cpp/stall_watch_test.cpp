#include "runtime/stall_watch.h"

#include <gtest/gtest.h>

#include <thread>

#include "fakes/fake_device.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;

/// A thread whose processor time the test sets.
class FakePriority final : public ThreadPriority {
 public:
  void raise() override { ++raises_; }
  void lower() override { --raises_; }
  std::optional<std::chrono::nanoseconds> used() const override { return used_.load(); }
  void set_unopposed(bool unopposed) override { is_unopposed_ = unopposed; }
  bool is_unopposed() const { return is_unopposed_; }
  void run() { used_ = used_.load() + 1ms; }
  int raises() const { return raises_; }

 private:
  std::atomic<bool> is_unopposed_{false};
  std::atomic<int> raises_{0};
  std::atomic<std::chrono::nanoseconds> used_{0ns};
};

class StallWatchTest : public ::testing::Test {
 protected:
  StallWatchTest() { watch_.look(); }

  ManualClock clock_;
  StallWatch watch_{clock_};
  Slot higher_slot_{Priority::kPrimary};
  Slot lower_slot_{Priority::kSecondary};
  FakePriority higher_;
  FakePriority lower_;
  StallWatch::Member higher_member_{watch_, higher_slot_, higher_};
  StallWatch::Member lower_member_{watch_, lower_slot_, lower_};
};

TEST_F(StallWatchTest, RaisesALowerJobThatStandsStillWhileAHigherOneDoes) {
  watch_.look();
  EXPECT_EQ(lower_.raises(), 1);
  EXPECT_EQ(higher_.raises(), 0);
  watch_.look();
  EXPECT_EQ(lower_.raises(), 1) << "once";
}

TEST_F(StallWatchTest, AJobIsUnopposedUntilAHigherOneRuns) {
  watch_.update_unopposed();
  EXPECT_TRUE(higher_.is_unopposed());
  EXPECT_FALSE(lower_.is_unopposed());
  Slot lowest_slot(Priority::kLowest);
  FakePriority lowest;
  StallWatch alone(clock_);
  const StallWatch::Member member(alone, lowest_slot, lowest);
  alone.update_unopposed();
  EXPECT_TRUE(lowest.is_unopposed());
  {
    const StallWatch::Member beside(alone, lower_slot_, lower_);
    alone.update_unopposed();
    EXPECT_FALSE(lowest.is_unopposed());
  }
  alone.update_unopposed();
  EXPECT_TRUE(lowest.is_unopposed());
}

TEST_F(StallWatchTest, LowersItAgainWhenTheHigherOneMakesProgress) {
  watch_.look();
  higher_.run();
  watch_.look();
  EXPECT_EQ(lower_.raises(), 0);
}

TEST_F(StallWatchTest, TheJobItselfIsLoweredAtItsNextOp) {
  watch_.look();
  EXPECT_NE(lower_slot_.interrupts.load() & kRaised, 0U);
  lower_again(lower_slot_, lower_);
  EXPECT_EQ(lower_.raises(), 0);
  lower_again(lower_slot_, lower_);
  EXPECT_EQ(lower_.raises(), 0);
}

TEST_F(StallWatchTest, LeavesJobsAloneThatMakeProgress) {
  lower_.run();
  watch_.look();
  EXPECT_EQ(lower_.raises(), 0);
  lower_slot_.enter();
  lower_slot_.leave();
  watch_.look();
  EXPECT_EQ(lower_.raises(), 0);
}

TEST_F(StallWatchTest, AnOpHoldsNothingThatOthersWaitFor) {
  lower_slot_.enter();
  watch_.look();
  watch_.look();
  EXPECT_EQ(lower_.raises(), 0);
  lower_slot_.leave();
  higher_slot_.enter();
  watch_.look();
  watch_.look();
  EXPECT_EQ(lower_.raises(), 0);
}

TEST_F(StallWatchTest, AHigherJobThatWaitsAsItShouldIsNotBlocked) {
  for (const Interrupt bit : {kSuspend, kHold}) {
    higher_slot_.interrupts = bit;
    watch_.look();
    watch_.look();
    EXPECT_EQ(lower_.raises(), 0);
  }
}

TEST_F(StallWatchTest, AJobThatLeavesIsLowered) {
  {
    Slot slot(Priority::kLowest);
    FakePriority priority;
    {
      const StallWatch::Member member(watch_, slot, priority);
      watch_.look();
      watch_.look();
      EXPECT_EQ(priority.raises(), 1);
    }
    EXPECT_EQ(priority.raises(), 0);
  }
  watch_.look();
}

TEST_F(StallWatchTest, ServesUntilItIsDismissed) {
  std::jthread server([this] { watch_.serve(); });
  while (lower_.raises() == 0) {
    clock_.advance(1ms);
    std::this_thread::sleep_for(1ms);
  }
  watch_.dismiss();
}

}  // namespace
}  // namespace torchshare
