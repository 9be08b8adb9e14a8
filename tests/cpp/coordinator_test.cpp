#include "runtime/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <future>

#include "device/fake/fake_device.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class CoordinatorTest : public ::testing::Test {
 protected:
  JobId add(const std::string& name, Priority priority, const std::string& start) {
    slots_.emplace_back(priority);
    return coordinator_.add({.name = name, .priority = priority, .start = parse_start(start)}, slots_.back());
  }
  std::future<bool> start(JobId job) {
    return std::async(std::launch::async, [=, this] { return coordinator_.wait_to_start(job); });
  }
  static bool still_waits(std::future<bool>& waiter) { return waiter.wait_for(20ms) == std::future_status::timeout; }
  std::vector<std::string> details(JobId job, EventKind kind) const {
    std::vector<std::string> found;
    for (const Event& event : timeline_.events()) {
      if (event.job == job && event.kind == kind) {
        found.push_back(event.detail);
      }
    }
    return found;
  }

  /// A job that has run elsewhere before, and what it suffered beside "p<other>".
  JobId add_profiled(const std::string& name, Priority priority, const std::string& start, double step, double steps,
                     const std::string& other, double ratio) {
    slots_.emplace_back(priority);
    return coordinator_.add({.name = name,
                             .priority = priority,
                             .start = parse_start(start),
                             .steps = steps,
                             .profile = ProfiledJob{"p" + name, step, {{"p" + other, {ratio, ratio}}}}},
                            slots_.back());
  }
  bool has_hold(JobId job) const { return (slots_[job].attention.load() & kHold) != 0; }

  ManualClock clock_;
  Timeline timeline_{1000};
  Gate gate_{make_gate_policy("priority", {}), clock_};
  std::deque<Slot> slots_;
  Coordinator coordinator_{clock_, timeline_, gate_};
};

TEST_F(CoordinatorTest, StartsAtTheStepThatWasAskedFor) {
  const JobId primary = add("a", Priority::kPrimary, "now");
  const JobId secondary = add("b", Priority::kSecondary, "step:2");
  EXPECT_TRUE(start(primary).get());
  auto waiter = start(secondary);
  coordinator_.count_step(primary);
  EXPECT_TRUE(still_waits(waiter));
  EXPECT_EQ(coordinator_.state(secondary), JobState::kDelayed);
  coordinator_.count_step(primary);
  EXPECT_TRUE(waiter.get());
  EXPECT_THAT(details(secondary, EventKind::kState), ElementsAre("pending", "delayed", "running"));
  EXPECT_THAT(details(secondary, EventKind::kDecision), ElementsAre("start: step:2: job 'a' has done 2 steps"));
}

TEST_F(CoordinatorTest, DecidesAtTheStepThoughTheWaitingThreadLooksLater) {
  const JobId primary = add("a", Priority::kPrimary, "now");
  const JobId secondary = add("b", Priority::kSecondary, "step:2");
  EXPECT_TRUE(start(primary).get());
  auto waiter = start(secondary);
  EXPECT_TRUE(still_waits(waiter));
  for (int step = 0; step < 1000; ++step) {
    coordinator_.count_step(primary);
  }
  EXPECT_TRUE(waiter.get());
  EXPECT_THAT(details(secondary, EventKind::kDecision), ElementsAre("start: step:2: job 'a' has done 2 steps"));
}

TEST_F(CoordinatorTest, StartsAfterItsDelayByTheDevicesClock) {
  const JobId job = add("a", Priority::kPrimary, "10");
  auto waiter = start(job);
  clock_.advance(9s);
  EXPECT_TRUE(still_waits(waiter));
  clock_.advance(1s);
  EXPECT_TRUE(waiter.get());
}

TEST_F(CoordinatorTest, StartsWhenTheAwaitedJobEnds) {
  const JobId first = add("a", Priority::kPrimary, "now");
  const JobId second = add("b", Priority::kSecondary, "after:a");
  EXPECT_TRUE(start(first).get());
  auto waiter = start(second);
  EXPECT_TRUE(still_waits(waiter));
  coordinator_.move(first, JobState::kFailed);
  EXPECT_TRUE(waiter.get());
}

TEST_F(CoordinatorTest, CancelsAJobThatWaitsToStart) {
  const JobId job = add("a", Priority::kPrimary, "1000");
  auto waiter = start(job);
  EXPECT_TRUE(still_waits(waiter));
  coordinator_.cancel_start(job);
  EXPECT_FALSE(waiter.get());
  EXPECT_EQ(coordinator_.state(job), JobState::kCancelled);
}

TEST_F(CoordinatorTest, CancelsAPendingJobAtOnce) {
  const JobId job = add("a", Priority::kPrimary, "now");
  coordinator_.cancel_start(job);
  EXPECT_EQ(coordinator_.state(job), JobState::kCancelled);
  EXPECT_FALSE(coordinator_.wait_to_start(job));
}

TEST_F(CoordinatorTest, RefusesTakenNamesAndAfterOpeningBadStarts) {
  add("a", Priority::kPrimary, "now");
  EXPECT_THAT([&] { add("a", Priority::kPrimary, "now"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("job 'a': the name is taken")));
  EXPECT_THAT([&] { add("", Priority::kPrimary, "now"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("name is empty")));
  coordinator_.open();
  EXPECT_THROW(add("b", Priority::kSecondary, "after:c"), std::invalid_argument);
  EXPECT_EQ(add("b", Priority::kSecondary, "after:a"), 1U);  // the refused one left nothing behind
}

TEST_F(CoordinatorTest, WaitsForAllToEndOrForItsDeadline) {
  const JobId job = add("a", Priority::kPrimary, "now");
  EXPECT_TRUE(coordinator_.wait_to_start(job));
  EXPECT_FALSE(coordinator_.wait_all(clock_.now()));
  auto waiter = std::async(std::launch::async, [this] { return coordinator_.wait_all(kNever); });
  EXPECT_TRUE(still_waits(waiter));
  coordinator_.move(job, JobState::kFinished);
  EXPECT_TRUE(waiter.get());
}

TEST_F(CoordinatorTest, StartsAnAutomaticJobAtOnceBesideOneItSharesWellWith) {
  const JobId primary = add_profiled("a", Priority::kPrimary, "now", 0.1, 100, "b", 1.1);
  const JobId secondary = add_profiled("b", Priority::kSecondary, "auto", 0.1, 100, "a", 1.1);
  coordinator_.open();
  auto waiter = start(secondary);
  EXPECT_TRUE(still_waits(waiter));  // for the one that is about to start
  EXPECT_TRUE(start(primary).get());
  EXPECT_TRUE(waiter.get());
  EXPECT_THAT(details(secondary, EventKind::kDecision), ElementsAre(HasSubstr("start: auto: ratios 1.1 and 1.1")));
}

TEST_F(CoordinatorTest, HoldsBackAnAutomaticJobThatWouldShareBadly) {
  const JobId primary = add_profiled("a", Priority::kPrimary, "now", 0.1, 100, "b", 3);
  const JobId secondary = add_profiled("b", Priority::kSecondary, "auto", 0.1, 100, "a", 3);
  coordinator_.open();
  EXPECT_TRUE(start(primary).get());
  auto waiter = start(secondary);
  EXPECT_TRUE(still_waits(waiter));
  coordinator_.move(primary, JobState::kFinished);
  EXPECT_TRUE(waiter.get());
}

class SwappedTest : public CoordinatorTest {
 protected:
  /// The primary is long, the secondary short, and together they are slow: the primary is held.
  SwappedTest() {
    primary_ = add_profiled("a", Priority::kPrimary, "now", 0.1, 10000, "b", 3);
    secondary_ = add_profiled("b", Priority::kSecondary, "auto", 0.1, 10, "a", 3);
    coordinator_.open();
    EXPECT_TRUE(start(primary_).get());
    EXPECT_TRUE(start(secondary_).get());
  }
  std::future<void> primary_waits() {
    return std::async(std::launch::async, [this] { coordinator_.wait_released(primary_); });
  }
  JobId primary_;
  JobId secondary_;
};

TEST_F(SwappedTest, AHeldJobWaitsUntilItsPartnerHasEnded) {
  EXPECT_TRUE(has_hold(primary_));
  auto waiter = primary_waits();
  EXPECT_EQ(waiter.wait_for(20ms), std::future_status::timeout);
  EXPECT_EQ(coordinator_.state(primary_), JobState::kSuspended);
  coordinator_.move(secondary_, JobState::kFinished);
  waiter.get();
  EXPECT_FALSE(has_hold(primary_));
  EXPECT_EQ(coordinator_.state(primary_), JobState::kRunning);
  EXPECT_THAT(
      details(primary_, EventKind::kDecision),
      ElementsAre("start: now", HasSubstr("hold: auto: ratios 3 and 3"), HasSubstr("release: auto: its partner")));
}

TEST_F(SwappedTest, CancelReachesAHeldJobAndNothingHoldsItAgain) {
  auto waiter = primary_waits();
  EXPECT_EQ(waiter.wait_for(20ms), std::future_status::timeout);
  coordinator_.cancel_start(primary_);
  waiter.get();
  EXPECT_FALSE(has_hold(primary_));
  for (int step = 0; step < 10; ++step) {
    clock_.advance(100ms);
    coordinator_.count_step(secondary_);
    EXPECT_FALSE(has_hold(primary_));
  }
}

TEST_F(SwappedTest, AJobThatDoesNotGetOnLetsTheHeldOneRunMeanwhile) {
  auto waiter = primary_waits();
  EXPECT_EQ(waiter.wait_for(20ms), std::future_status::timeout);
  clock_.advance(2s);  // without a step of the secondary; the held job's own thread must notice
  waiter.get();
  coordinator_.count_step(secondary_);
  EXPECT_TRUE(has_hold(primary_));
}

TEST_F(CoordinatorTest, RefusesProfilesThatMakeNoSenseAndKeepsNothingOfThem) {
  EXPECT_THAT([&] { add_profiled("a", Priority::kPrimary, "now", -1, 10, "b", 1); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("job 'a': step time of its profile is -1")));
  EXPECT_THAT(coordinator_.names(), ElementsAre());
}

TEST(BoundedCoordinator, PacesLowerJobsByThePrimarysSteps) {
  ManualClock clock;
  Timeline timeline(1000);
  Gate gate(make_gate_policy("priority", {}), clock);
  Coordinator coordinator(clock, timeline, gate, 0.05);
  Slot slots[2] = {Slot(Priority::kPrimary), Slot(Priority::kSecondary)};
  const JobId primary = coordinator.add({.name = "a", .priority = Priority::kPrimary}, slots[0]);
  const JobId secondary = coordinator.add({.name = "b"}, slots[1]);
  EXPECT_TRUE(coordinator.wait_to_start(primary));
  EXPECT_TRUE(coordinator.wait_to_start(secondary));
  gate.add(slots[0]);
  gate.add(slots[1]);
  int open = 0;
  constexpr int kMilliseconds = 20'000;
  for (int left = 0, now = 0; now < kMilliseconds; ++now) {
    const bool runs = gate.try_enter(slots[1]);
    open += runs ? 1 : 0;
    left -= runs ? 5 : 10;  // the secondary costs it half its speed
    clock.advance(1ms);
    if (left <= 0) {
      coordinator.count_step(primary);
      left = 100;
    }
  }
  const auto stats = coordinator.bound(primary);
  ASSERT_TRUE(stats.has_value());
  EXPECT_NEAR(stats->alone, 0.01, 0.001);
  EXPECT_NEAR(stats->loss, 0.5, 0.1);
  EXPECT_NEAR(static_cast<double>(open) / kMilliseconds, 0.08, 0.03);
  EXPECT_GE(stats->windows, 15U);
  EXPECT_GE(stats->windows_inside, stats->windows - 2);
  EXPECT_FALSE(coordinator.bound(secondary).has_value());
  gate.remove(slots[0]);
  gate.remove(slots[1]);
}

TEST_F(CoordinatorTest, IgnoresMovesOfEndedJobs) {
  const JobId job = add("a", Priority::kPrimary, "now");
  EXPECT_TRUE(coordinator_.wait_to_start(job));
  EXPECT_TRUE(coordinator_.move(job, JobState::kCancelled));
  EXPECT_FALSE(coordinator_.move(job, JobState::kFinished));
  EXPECT_EQ(coordinator_.state(job), JobState::kCancelled);
}

}  // namespace
}  // namespace torchshare
