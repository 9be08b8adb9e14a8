#include "runtime/coordinator.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>

#include "fakes/coordinator_fixture.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST_F(CoordinatorTest, StartsAtTheRequestedStep) {
  Member& primary = add("a", Priority::kPrimary, "now");
  Member& secondary = add("b", Priority::kSecondary, "step:2");
  EXPECT_TRUE(start(primary).get());
  auto waiter = start(secondary);
  EXPECT_TRUE(is_delayed(secondary));
  primary.step();
  EXPECT_TRUE(still_waits(waiter));
  EXPECT_EQ(secondary.state(), JobState::kDelayed);
  primary.step();
  EXPECT_TRUE(waiter.get());
  EXPECT_THAT(details(secondary, EventKind::kState), ElementsAre("pending", "delayed", "running"));
  EXPECT_THAT(details(secondary, EventKind::kDecision), ElementsAre("start: step:2: job 'a' has done 2 steps"));
}

TEST_F(CoordinatorTest, CountsTheStepsBeforeAResume) {
  Member& primary = add("a", Priority::kPrimary, "now");
  Member& reached = add("b", Priority::kSecondary, "step:50");
  Member& later = add("c", Priority::kSecondary, "step:52");
  EXPECT_TRUE(start(primary).get());
  auto first = start(reached);
  auto second = start(later);
  EXPECT_TRUE(is_delayed(reached) && is_delayed(later));
  primary.go_on_after(50);
  EXPECT_TRUE(first.get());
  primary.step();
  EXPECT_TRUE(still_waits(second));
  primary.step();
  EXPECT_TRUE(second.get());
  EXPECT_THAT(details(later, EventKind::kDecision), ElementsAre("start: step:52: job 'a' has done 52 steps"));
}

TEST_F(CoordinatorTest, DecidesAtTheStepBeforeTheWaitingThreadWakes) {
  Member& primary = add("a", Priority::kPrimary, "now");
  Member& secondary = add("b", Priority::kSecondary, "step:2");
  EXPECT_TRUE(start(primary).get());
  auto waiter = start(secondary);
  EXPECT_TRUE(is_delayed(secondary));
  for (int step = 0; step < 1000; ++step) {
    primary.step();
  }
  EXPECT_TRUE(waiter.get());
  EXPECT_THAT(details(secondary, EventKind::kDecision), ElementsAre("start: step:2: job 'a' has done 2 steps"));
}

TEST_F(CoordinatorTest, StartsAfterItsDelayByTheDevicesClock) {
  Member& job = add("a", Priority::kPrimary, "10");
  auto waiter = start(job);
  clock_.advance(9s);
  EXPECT_TRUE(still_waits(waiter));
  clock_.advance(1s);
  EXPECT_TRUE(waiter.get());
}

TEST_F(CoordinatorTest, StartsWhenTheAwaitedJobEnds) {
  Member& first = add("a", Priority::kPrimary, "now");
  Member& second = add("b", Priority::kSecondary, "after:a");
  EXPECT_TRUE(start(first).get());
  auto waiter = start(second);
  EXPECT_TRUE(still_waits(waiter));
  first.end(JobState::kFailed);
  EXPECT_TRUE(waiter.get());
}

TEST_F(CoordinatorTest, CancelsAJobThatWaitsToStart) {
  Member& job = add("a", Priority::kPrimary, "1000");
  auto waiter = start(job);
  EXPECT_TRUE(still_waits(waiter));
  coordinator_.cancel_start(job.id());
  EXPECT_FALSE(waiter.get());
  EXPECT_EQ(job.state(), JobState::kCancelled);
}

TEST_F(CoordinatorTest, CancelsAllStartsBeforeTheEndOfOneJobStartsAnother) {
  Member& first = add("a", Priority::kPrimary, "now");
  Member& second = add("b", Priority::kSecondary, "after:a");
  EXPECT_TRUE(start(first).get());
  auto waiter = start(second);
  EXPECT_TRUE(is_delayed(second));
  coordinator_.cancel_starts();
  first.end(JobState::kCancelled);
  EXPECT_FALSE(waiter.get());
  EXPECT_THAT(details(second, EventKind::kState), ElementsAre("pending", "delayed", "cancelled"));
}

TEST_F(CoordinatorTest, CancelsAPendingJobAtOnce) {
  Member& job = add("a", Priority::kPrimary, "now");
  coordinator_.cancel_start(job.id());
  EXPECT_EQ(job.state(), JobState::kCancelled);
  EXPECT_FALSE(coordinator_.wait_to_start(job.id()));
}

TEST_F(CoordinatorTest, TheNameOfAJobThatHasEndedIsFree) {
  Member& first = add("a", Priority::kPrimary, "now");
  coordinator_.open();
  coordinator_.cancel_start(first.id());
  EXPECT_EQ(add("a", Priority::kPrimary, "now").state(), JobState::kPending);
  EXPECT_EQ(add("b", Priority::kSecondary, "after:a").id(), 2U);
  EXPECT_THROW(add("a", Priority::kPrimary, "now"), std::invalid_argument);
}

TEST_F(CoordinatorTest, RefusesTakenNamesAndAfterOpeningBadStarts) {
  add("a", Priority::kPrimary, "now");
  EXPECT_THAT([&] { add("a", Priority::kPrimary, "now"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("job names must be unique in a runtime, got 'a' twice")));
  EXPECT_THAT([&] { add("", Priority::kPrimary, "now"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("job name must not be empty")));
  coordinator_.open();
  EXPECT_THROW(add("b", Priority::kSecondary, "after:c"), std::invalid_argument);
  EXPECT_EQ(add("b", Priority::kSecondary, "after:a").id(), 1U);  // the refused job left no entry
}

TEST_F(CoordinatorTest, WaitsForAllToEndOrForItsDeadline) {
  Member& job = add("a", Priority::kPrimary, "now");
  EXPECT_TRUE(coordinator_.wait_to_start(job.id()));
  EXPECT_FALSE(coordinator_.wait_all(clock_.now()));
  auto waiter = std::async(std::launch::async, [this] { return coordinator_.wait_all(kNever); });
  EXPECT_TRUE(still_waits(waiter));
  job.end(JobState::kFinished);
  EXPECT_TRUE(waiter.get());
}

TEST_F(CoordinatorTest, StartsAnAutomaticJobAtOnceBesideOneItSharesWellWith) {
  Member& primary = add_profiled("a", Priority::kPrimary, "now", 0.1, 100, "b", 1.1);
  Member& secondary = add_profiled("b", Priority::kSecondary, "auto", 0.1, 100, "a", 1.1);
  coordinator_.keep_orders();
  coordinator_.open();
  auto waiter = start(secondary);
  EXPECT_TRUE(still_waits(waiter));  // for the job that is about to start
  EXPECT_TRUE(start(primary).get());
  EXPECT_TRUE(waiter.get());
  EXPECT_THAT(details(secondary, EventKind::kDecision), ElementsAre(HasSubstr("start: auto: ratios 1.1 and 1.1")));
  const auto orders = coordinator_.take_orders();  // for other ranks
  ASSERT_EQ(orders.size(), 2U);
  EXPECT_EQ(orders.front().job, primary.id());
  EXPECT_EQ(orders.back().job, secondary.id());
}

TEST_F(CoordinatorTest, HoldsBackAnAutomaticJobThatWouldShareBadly) {
  Member& primary = add_profiled("a", Priority::kPrimary, "now", 0.1, 100, "b", 3);
  Member& secondary = add_profiled("b", Priority::kSecondary, "auto", 0.1, 100, "a", 3);
  coordinator_.open();
  EXPECT_TRUE(start(primary).get());
  auto waiter = start(secondary);
  EXPECT_TRUE(still_waits(waiter));
  primary.end(JobState::kFinished);
  EXPECT_TRUE(waiter.get());
  EXPECT_TRUE(coordinator_.take_orders().empty()) << "kept only where other ranks take them";
}

TEST_F(CoordinatorTest, FollowsAnotherRanksDecisionsAboutAutomaticJobs) {
  Member& primary = add_profiled("a", Priority::kPrimary, "now", 0.1, 100, "b", 1.1);
  Member& secondary = add_profiled("b", Priority::kSecondary, "auto", 0.1, 100, "a", 1.1);
  coordinator_.follow_orders();
  coordinator_.open();
  EXPECT_TRUE(start(primary).get());
  auto waiter = start(secondary);
  EXPECT_TRUE(still_waits(waiter));  // alone, it would start
  EXPECT_TRUE(coordinator_.take_orders().empty());
  coordinator_.obey({.job = secondary.id(), .action = AutoSharing::Action::kStart, .reason = "rank 0 says so"});
  EXPECT_TRUE(waiter.get());
  EXPECT_THAT(details(secondary, EventKind::kDecision), ElementsAre("start: rank 0 says so"));
}

TEST_F(CoordinatorTest, FollowsAnotherRanksStartConditions) {
  Member& primary = add("a", Priority::kPrimary, "now");
  Member& secondary = add("b", Priority::kSecondary, "step:1");
  coordinator_.follow_orders();
  coordinator_.open();
  EXPECT_TRUE(start(primary).get());
  auto waiter = start(secondary);
  primary.step();
  EXPECT_TRUE(still_waits(waiter)) << "the first rank has not come so far";
  coordinator_.obey({.job = primary.id(), .action = AutoSharing::Action::kStart, .reason = "now"});
  coordinator_.obey({.job = secondary.id(), .action = AutoSharing::Action::kStart, .reason = "step 1"});
  EXPECT_TRUE(waiter.get());
  EXPECT_THAT(details(primary, EventKind::kDecision), ElementsAre("start: now"));
}

TEST_F(CoordinatorTest, CarriesOutAnOrderAboutAJobThatIsAddedLater) {
  add("a", Priority::kPrimary, "now");
  coordinator_.follow_orders();
  coordinator_.open();
  coordinator_.obey({.job = 1, .action = AutoSharing::Action::kStart, .reason = "rank 0 says so"});
  Member& late = add("b", Priority::kSecondary, "step:1");
  EXPECT_TRUE(start(late).get());
}

TEST_F(CoordinatorTest, AnOrderToStartWaitsForThePredecessorsOfThisRank) {
  Member& first = add("a", Priority::kPrimary, "now");
  Member& successor = add({.name = "b", .start = "step:1", .after = {"ok:a"}});
  coordinator_.follow_orders();
  coordinator_.open();
  EXPECT_TRUE(start(first).get());
  auto waiter = start(successor);
  coordinator_.obey({.job = successor.id(), .action = AutoSharing::Action::kStart, .reason = "rank 0 says so"});
  EXPECT_TRUE(still_waits(waiter)) << "its predecessor has not ended here";
  first.end(JobState::kFinished);
  EXPECT_TRUE(waiter.get());
  EXPECT_THAT(details(successor, EventKind::kDecision),
              ElementsAre("may start: 'a' finished", "start: rank 0 says so"));
}

TEST_F(CoordinatorTest, SuccessorsAreCancelledThroughAnyNumberOfJobs) {
  Member& first = add("a", Priority::kPrimary, "now");
  std::vector<Member*> chain;
  for (int index = 0; index < 100; ++index) {
    const std::string before = index == 0 ? "a" : fmt::format("b{}", index - 1);
    chain.push_back(&add({.name = fmt::format("b{}", index), .after = {"ok:" + before}}));
  }
  coordinator_.open();
  EXPECT_TRUE(start(first).get());
  auto waiter = start(*chain.back());
  EXPECT_TRUE(still_waits(waiter));
  first.end(JobState::kFailed);
  EXPECT_FALSE(waiter.get());
  for (const Member* const member : chain) {
    EXPECT_EQ(member->state(), JobState::kCancelled);
  }
  EXPECT_THAT(details(*chain[1], EventKind::kDecision),
              ElementsAre("job 'b1' was not started: its predecessor 'b0' was cancelled"));
}

class SwappedTest : public CoordinatorTest {
 protected:
  /// A long primary and a short secondary that share badly: the primary is held.
  SwappedTest() {
    coordinator_.open();
    EXPECT_TRUE(start(primary_).get());
    EXPECT_TRUE(start(secondary_).get());
  }
  ~SwappedTest() override { coordinator_.dismiss(); }
  std::future<void> primary_waits() {
    return std::async(std::launch::async, [this] {
      primary_.send(JobMessage::Kind::kHeld);
      gate_.wait_while(primary_.slot(), kHold);
      primary_.send(JobMessage::Kind::kResumed);
    });
  }
  Member& primary_ = add_profiled("a", Priority::kPrimary, "now", 0.1, 10000, "b", 3);
  Member& secondary_ = add_profiled("b", Priority::kSecondary, "auto", 0.1, 10, "a", 3);
  std::jthread server_{[this] { coordinator_.serve(); }};
};

TEST_F(SwappedTest, AHeldJobWaitsUntilItsPartnerHasEnded) {
  EXPECT_TRUE(primary_.has_hold());
  auto waiter = primary_waits();
  EXPECT_EQ(waiter.wait_for(20ms), std::future_status::timeout);
  EXPECT_EQ(primary_.state(), JobState::kSuspended);
  secondary_.end(JobState::kFinished);
  waiter.get();
  EXPECT_FALSE(primary_.has_hold());
  EXPECT_EQ(primary_.state(), JobState::kRunning);
  EXPECT_THAT(
      details(primary_, EventKind::kDecision),
      ElementsAre("start: now", HasSubstr("hold: auto: ratios 3 and 3"), HasSubstr("release: auto: its partner")));
}

TEST_F(SwappedTest, CancelReachesAHeldJobAndNothingHoldsItAgain) {
  auto waiter = primary_waits();
  EXPECT_EQ(waiter.wait_for(20ms), std::future_status::timeout);
  coordinator_.cancel_start(primary_.id());
  waiter.get();
  EXPECT_FALSE(primary_.has_hold());
  for (int step = 0; step < 10; ++step) {
    clock_.advance(100ms);
    secondary_.step();
    EXPECT_FALSE(primary_.has_hold());
  }
}

TEST_F(SwappedTest, AStalledJobLetsTheHeldOneRun) {
  auto waiter = primary_waits();
  EXPECT_EQ(waiter.wait_for(20ms), std::future_status::timeout);
  clock_.advance(2s);  // without a step of the secondary: the coordinator's own thread must notice
  waiter.get();
  secondary_.step();
  EXPECT_TRUE(primary_.has_hold());
}

TEST_F(CoordinatorTest, RefusesInvalidProfilesAndKeepsNothingOfThem) {
  EXPECT_THAT([&] { add_profiled("a", Priority::kPrimary, "now", -1, 10, "b", 1); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("job 'a': step time of its profile must be a positive number, got -1")));
  EXPECT_THAT(coordinator_.names(), ElementsAre());
}

class BoundedPair : public ::testing::Test {
 protected:
  BoundedPair() {
    EXPECT_TRUE(coordinator_.wait_to_start(primary_.id()));
    EXPECT_TRUE(coordinator_.wait_to_start(secondary_.id()));
  }

  ManualClock clock_;
  Timeline timeline_{1000};
  Gate gate_{make_gate_policy("priority", {}), clock_};
  Coordinator coordinator_{clock_, timeline_, gate_, {.max_slowdown = 0.05}};
  Member primary_{coordinator_, clock_, {.name = "a", .priority = Priority::kPrimary}};
  Member secondary_{coordinator_, clock_, {.name = "b"}};
};

TEST_F(BoundedPair, PacesLowerJobsByThePrimarysSteps) {
  const Gate::Membership first(gate_, primary_.slot(), nullptr);
  const Gate::Membership second(gate_, secondary_.slot(), nullptr);
  int open = 0;
  constexpr int kMilliseconds = 20'000;
  for (int left = 0, now = 0; now < kMilliseconds; ++now) {
    const bool runs = gate_.try_enter(secondary_.slot());
    open += runs ? 1 : 0;
    left -= runs ? 5 : 10;  // the secondary costs it half its speed
    clock_.advance(1ms);
    if (left <= 0) {
      primary_.step();
      left = 100;
    }
  }
  const auto stats = coordinator_.bound(primary_.id());
  ASSERT_TRUE(stats.has_value());
  EXPECT_NEAR(stats->alone, 0.01, 0.001);
  EXPECT_NEAR(stats->loss, 0.5, 0.1);
  EXPECT_NEAR(static_cast<double>(open) / kMilliseconds, 0.08, 0.03);
  EXPECT_GE(stats->windows, 15U);
  EXPECT_GE(stats->windows_inside, stats->windows - 2);
  EXPECT_FALSE(coordinator_.bound(secondary_.id()).has_value());
}

TEST_F(BoundedPair, APrimaryWithoutStepsLimitsNoOther) {
  clock_.advance(10s);
  secondary_.step();
  EXPECT_EQ(gate_.pace(), Pace{});
}

TEST_F(BoundedPair, TheBoundHoldsFromThePrimarysFirstTimedStepToItsEnd) {
  for (int step = 0; step < 2; ++step) {
    clock_.advance(10ms);
    primary_.step();
  }
  EXPECT_NEAR(gate_.pace().share, 0.05, 0.01);
  primary_.end(JobState::kFinished);
  EXPECT_EQ(gate_.pace(), Pace{}) << "another primary, such as a server, may follow";
}

TEST_F(BoundedPair, AFewStepsLimitNoOtherForGood) {
  for (int step = 0; step < 6; ++step) {
    clock_.advance(10ms);
    primary_.step();
  }
  EXPECT_GT(gate_.pace().until, clock_.now());
  clock_.advance(2s);  // it evaluates from now on
  EXPECT_LT(gate_.pace().until, clock_.now());
}

TEST_F(BoundedPair, ThePaceThatStepsHaveSetHoldsWhileThePrimaryEvaluates) {
  for (int step = 0; step < 500; ++step) {
    clock_.advance(10ms);
    primary_.step();
  }
  clock_.advance(1h);
  EXPECT_LT(gate_.pace().share, 1);
  EXPECT_GT(gate_.pace().until, clock_.now());
}

TEST_F(CoordinatorTest, AGivenUpJobChangesNothingAnyMore) {
  Member& job = add("a", Priority::kPrimary, "now");
  EXPECT_TRUE(coordinator_.wait_to_start(job.id()));
  coordinator_.give_up(job.id());
  job.step();
  job.end(JobState::kFinished);
  EXPECT_EQ(job.state(), JobState::kCancelled);
  EXPECT_THAT(details(job, EventKind::kState), ElementsAre("pending", "running", "cancelled"));
}

TEST_F(CoordinatorTest, AWithdrawnJobIsNotWaitedForAndItsNameIsFree) {
  add("a", Priority::kPrimary, "now");
  members_.clear();
  EXPECT_TRUE(coordinator_.wait_all(kNever));
  EXPECT_EQ(add("a", Priority::kPrimary, "now").state(), JobState::kPending);
}

TEST_F(CoordinatorTest, StartsWaitForTheSuccessorOfAWithdrawnJob) {
  coordinator_.open();
  add("x", Priority::kPrimary, "now");
  members_.clear();
  Member& again = add("x", Priority::kPrimary, "now");
  EXPECT_TRUE(start(again).get());
  auto at_step = start(add("y", Priority::kSecondary, "step:1"));
  auto after = start(add("z", Priority::kSecondary, "after:x"));
  EXPECT_TRUE(still_waits(at_step));
  EXPECT_TRUE(still_waits(after));
  again.step();
  EXPECT_TRUE(at_step.get());
  again.end(JobState::kFinished);
  EXPECT_TRUE(after.get());
}

TEST_F(CoordinatorTest, AJobWithTheNameOfAnEndedOneDoesNotWaitForItself) {
  coordinator_.open();
  Member& ended = add("x", Priority::kPrimary, "now");
  EXPECT_TRUE(start(ended).get());
  ended.end(JobState::kFinished);
  EXPECT_THAT([&] { add("x", Priority::kPrimary, "after:x"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("waits for itself")));
  add("y", Priority::kSecondary, "after:x");
  EXPECT_THAT([&] { add("x", Priority::kPrimary, "after:y"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("wait for each other")));
  EXPECT_TRUE(start(add("z", Priority::kSecondary, "after:x")).get()) << "a refused job has replaced none";
}

TEST_F(CoordinatorTest, AJobThatHasStartedWaitsForNone) {
  coordinator_.open();
  Member& ended = add("x", Priority::kPrimary, "now");
  EXPECT_TRUE(start(ended).get());
  ended.end(JobState::kFinished);
  Member& runs = add("y", Priority::kSecondary, "after:x");
  EXPECT_TRUE(start(runs).get());
  auto again = start(add("x", Priority::kPrimary, "after:y"));
  EXPECT_TRUE(still_waits(again));
  runs.end(JobState::kFinished);
  EXPECT_TRUE(again.get());
}

TEST_F(CoordinatorTest, AWithdrawnPrimaryStartsNoJob) {
  coordinator_.open();
  Member& runs = add("a", Priority::kSecondary, "now");
  EXPECT_TRUE(start(runs).get());
  auto waiter = start(add("b", Priority::kSecondary, "step:1"));
  EXPECT_TRUE(still_waits(waiter));
  add("p", Priority::kPrimary, "now");
  members_.pop_back();
  EXPECT_TRUE(still_waits(waiter));
  runs.step();
  EXPECT_TRUE(waiter.get());
}

TEST_F(CoordinatorTest, TheConditionOfAWithdrawnJobIsNotChecked) {
  coordinator_.open();
  add("a", Priority::kPrimary, "now");
  add("b", Priority::kSecondary, "after:a");
  members_.clear();
  EXPECT_EQ(add("c", Priority::kPrimary, "now").state(), JobState::kPending);
}

TEST_F(CoordinatorTest, AJobThatHasEndedLeavesARecord) {
  coordinator_.open();
  for (int i = 0; i < 1000; ++i) {
    Member& job = add("job " + std::to_string(i), i == 0 ? Priority::kPrimary : Priority::kSecondary, "now");
    EXPECT_TRUE(coordinator_.wait_to_start(job.id()));
    job.step();
    job.end(JobState::kFinished);
    ASSERT_LE(coordinator_.size(), 1U);
  }
  coordinator_.serve_once();
  EXPECT_EQ(coordinator_.size(), 0U);
  EXPECT_EQ(coordinator_.names().size(), 1000U);
  members_.clear();  // as a runtime forgets them
  EXPECT_TRUE(start(add("a", Priority::kSecondary, "after:job 0")).get());
  EXPECT_THAT(details(*members_.back(), EventKind::kDecision),
              ElementsAre(HasSubstr("job 'job 0' finished after 1 steps")));
  EXPECT_TRUE(start(add("b", Priority::kSecondary, "step:5")).get());
  EXPECT_THAT(details(*members_.back(), EventKind::kDecision),
              ElementsAre(HasSubstr("job 'job 0' finished after 1 steps")));
}

TEST_F(CoordinatorTest, OfTheJobsWithOneNameTheLastIsMeant) {
  coordinator_.open();
  const auto run = [&](const std::string& name, JobState end) {
    Member& job = add(name, Priority::kPrimary, "now");
    EXPECT_TRUE(coordinator_.wait_to_start(job.id()));
    job.end(end);
  };
  run("x", JobState::kFinished);
  run("y", JobState::kFinished);
  run("x", JobState::kFailed);
  EXPECT_TRUE(start(add("a", Priority::kSecondary, "after:x")).get());
  EXPECT_THAT(details(*members_.back(), EventKind::kDecision), ElementsAre(HasSubstr("job 'x' failed")));
  Member& again = add("x", Priority::kPrimary, "now");
  EXPECT_TRUE(coordinator_.wait_to_start(again.id()));
  auto after = start(add("b", Priority::kSecondary, "after:x"));
  EXPECT_TRUE(still_waits(after));
  EXPECT_TRUE(start(add("c", Priority::kSecondary, "step:5")).get()) << "'y' is the first of the highest priority";
  again.end(JobState::kFinished);
  EXPECT_TRUE(after.get());
}

TEST_F(CoordinatorTest, NothingReachesAJobThatHasEnded) {
  Member& job = add("a", Priority::kPrimary, "now");
  EXPECT_TRUE(coordinator_.wait_to_start(job.id()));
  job.end(JobState::kFinished);
  coordinator_.serve_once();
  ASSERT_EQ(coordinator_.size(), 0U);
  job.step();
  job.end(JobState::kFailed);
  coordinator_.cancel_start(job.id());
  coordinator_.give_up(job.id());
  coordinator_.obey({job.id(), AutoSharing::Action::kHold, "late"});
  EXPECT_FALSE(coordinator_.wait_to_start(job.id()));
  EXPECT_FALSE(coordinator_.bound(job.id()).has_value());
  EXPECT_FALSE(job.has_hold());
  EXPECT_EQ(job.state(), JobState::kFinished);
}

TEST_F(CoordinatorTest, AJobThatIsGivenUpWhileItWaitsToStartEndsWithItsThread) {
  coordinator_.open();
  Member& job = add("a", Priority::kSecondary, "1000");
  auto waiter = start(job);
  ASSERT_TRUE(is_delayed(job));
  coordinator_.give_up(job.id());
  coordinator_.serve_once();
  EXPECT_EQ(coordinator_.size(), 1U) << "its thread is still inside";
  coordinator_.cancel_start(job.id());
  EXPECT_FALSE(waiter.get());
  coordinator_.serve_once();
  EXPECT_EQ(coordinator_.size(), 0U);
}

}  // namespace
}  // namespace torchshare
