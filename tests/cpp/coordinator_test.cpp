#include "runtime/coordinator.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <thread>

#include "device/cpu/cpu_device.h"
#include "fakes/fake_device.h"
#include "fakes/member.h"
#include "fakes/no_memory.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class CoordinatorTest : public ::testing::Test {
 protected:
  Member& add(const std::string& name, Priority priority, const std::string& start) {
    return add({.name = name, .priority = priority, .start = start});
  }
  Member& add(NewJob told) {
    members_.push_back(std::make_unique<Member>(coordinator_, clock_, std::move(told)));
    return *members_.back();
  }
  std::future<bool> start(const Member& member) {
    return std::async(std::launch::async, [job = member.id(), this] { return coordinator_.wait_to_start(job); });
  }
  /// Waits until the job's thread has come.
  static bool is_delayed(const Member& member) {
    const auto deadline = std::chrono::steady_clock::now() + 10s;
    while (member.state() == JobState::kPending && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(1ms);
    }
    return member.state() == JobState::kDelayed;
  }
  static bool still_waits(std::future<bool>& waiter) { return waiter.wait_for(20ms) == std::future_status::timeout; }
  std::vector<std::string> details(const Member& member, EventKind kind) const {
    std::vector<std::string> found;
    for (const Event& event : timeline_.events()) {
      if (event.job == member.id() && event.kind == kind) {
        found.push_back(event.detail);
      }
    }
    return found;
  }

  /// The profile of a job, with its ratios beside "p<other>".
  Member& add_profiled(const std::string& name, Priority priority, const std::string& start, double step, double steps,
                       const std::string& other, double ratio) {
    return add({.name = name,
                .priority = priority,
                .start = start,
                .steps = steps,
                .profile = ProfiledJob{"p" + name, step, {{"p" + other, {ratio, ratio}}}}});
  }

  ManualClock clock_;
  Timeline timeline_{1000};
  Gate gate_{make_gate_policy("priority", {}), clock_};
  Coordinator coordinator_{clock_, timeline_, gate_};
  std::vector<std::unique_ptr<Member>> members_;
};

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

/// Two jobs run at once; the others wait.
class QueueTest : public CoordinatorTest {
 protected:
  ~QueueTest() override {
    for (auto& [member, waiter] : waiters_) {
      queue_.cancel_start(member->id());
    }
  }
  Member& job(const std::string& name, Priority priority = Priority::kSecondary, const std::string& start = "now") {
    queued_.push_back(
        std::make_unique<Member>(queue_, clock_, NewJob{.name = name, .priority = priority, .start = start}));
    return *queued_.back();
  }
  /// The calls of the jobs' threads, which wait for their turns.
  template <class... Members>
  void arrive(Members&... members) {
    const auto wait = [this](JobId job) { return queue_.wait_to_start(job); };
    ((waiters_[&members] = std::async(std::launch::async, wait, members.id())), ...);
  }
  bool waits(Member& member) { return is_delayed(member) && still_waits(waiters_.at(&member)); }
  bool runs(Member& member) {
    std::future<bool>& waiter = waiters_.at(&member);
    return waiter.wait_for(10s) == std::future_status::ready && waiter.get() && member.state() == JobState::kRunning;
  }

  Coordinator queue_{clock_, timeline_, gate_, {.max_concurrent = 2}};
  std::vector<std::unique_ptr<Member>> queued_;  // after queue_
  std::map<Member*, std::future<bool>> waiters_;
};

TEST_F(QueueTest, StartsTheNextJobInOrderWhenOneEnds) {
  Member& a = job("a");
  Member& b = job("b");
  Member& c = job("c");
  Member& d = job("d");
  queue_.open();
  arrive(d, c);
  EXPECT_TRUE(waits(d));
  EXPECT_TRUE(waits(c)) << "the places are for jobs whose threads have not come yet";
  for (Member* const member : {&a, &b}) {
    arrive(*member);
    EXPECT_TRUE(runs(*member));
  }
  a.step();
  EXPECT_TRUE(waits(c));
  b.end(JobState::kFailed);
  EXPECT_TRUE(runs(c));
  EXPECT_TRUE(waits(d));
  a.end(JobState::kFinished);
  EXPECT_TRUE(runs(d));
  EXPECT_THAT(details(d, EventKind::kDecision), ElementsAre("start: now; places free: 1 of 2"));
}

TEST_F(QueueTest, StartsTheHighestPriorityFirst) {
  Member& a = job("a");
  Member& b = job("b");
  Member& c = job("c");
  queue_.open();
  arrive(a, b);
  EXPECT_TRUE(runs(a));
  EXPECT_TRUE(runs(b));
  arrive(c);
  Member& d = job("d", Priority::kPrimary);
  arrive(d);
  EXPECT_TRUE(waits(c));
  EXPECT_TRUE(waits(d));
  a.end(JobState::kFinished);
  EXPECT_TRUE(runs(d));
  EXPECT_TRUE(waits(c));
}

TEST_F(QueueTest, AJobWhoseConditionDoesNotHoldTakesNoPlace) {
  Member& primary = job("a", Priority::kPrimary, "after:d");
  Member& at_step = job("b", Priority::kSecondary, "step:1");
  Member& delayed = job("c", Priority::kSecondary, "10");
  Member& d = job("d");
  Member& e = job("e");
  queue_.open();
  arrive(primary, at_step, delayed, d, e);
  EXPECT_TRUE(runs(d));
  EXPECT_TRUE(runs(e));
  clock_.advance(11s);
  EXPECT_TRUE(waits(delayed));
  d.end(JobState::kFinished);
  EXPECT_TRUE(runs(primary)) << "it is of higher priority than the delayed job";
  primary.step();
  e.end(JobState::kFinished);
  EXPECT_TRUE(runs(at_step)) << "it came before the delayed job";
  EXPECT_TRUE(waits(delayed));
  at_step.end(JobState::kFinished);
  EXPECT_TRUE(runs(delayed));
}

TEST_F(QueueTest, ADelayEndsWhileTheOthersWait) {
  Member& a = job("a", Priority::kSecondary, "10");
  queue_.open();
  arrive(a);
  EXPECT_TRUE(waits(a));
  clock_.advance(10s);
  EXPECT_TRUE(runs(a));
}

TEST_F(QueueTest, ACancelledJobGivesUpItsTurn) {
  Member& a = job("a");
  Member& b = job("b");
  Member& pending = job("c");
  Member& delayed = job("d");
  Member& e = job("e");
  queue_.open();
  arrive(a, b, delayed, e);
  EXPECT_TRUE(runs(a));
  EXPECT_TRUE(runs(b));
  a.end(JobState::kFinished);
  EXPECT_TRUE(waits(delayed)) << "a job whose thread has not come is next";
  queue_.cancel_start(delayed.id());
  EXPECT_FALSE(waiters_.at(&delayed).get());
  EXPECT_TRUE(waits(e));
  queue_.cancel_start(pending.id());
  EXPECT_TRUE(runs(e));
}

TEST_F(QueueTest, ASuspendedJobKeepsItsPlace) {
  Member& a = job("a");
  Member& b = job("b");
  Member& c = job("c");
  queue_.open();
  arrive(a, b, c);
  EXPECT_TRUE(runs(a));
  EXPECT_TRUE(runs(b));
  a.report(JobReport::Kind::kSuspended);
  EXPECT_TRUE(waits(c));
  queue_.give_up(a.id());
  EXPECT_TRUE(runs(c));
}

TEST_F(QueueTest, ASpilledJobGivesUpItsPlace) {
  Member& a = job("a");
  Member& b = job("b");
  Member& c = job("c");
  Member& d = job("d");
  queue_.open();
  arrive(a, b, c, d);
  EXPECT_TRUE(runs(a));
  EXPECT_TRUE(runs(b));
  a.report(JobReport::Kind::kSpilled);
  EXPECT_TRUE(runs(c));
  a.report(JobReport::Kind::kRestored);
  b.end(JobState::kFinished);
  EXPECT_TRUE(waits(d)) << "it came back";
  a.end(JobState::kFinished);
  EXPECT_TRUE(runs(d));
}

TEST_F(QueueTest, AutomaticJobsTakeThePlacesThatAreLeft) {
  Member& automatic = job("a", Priority::kPrimary, "auto");
  Member& b = job("b");
  Member& c = job("c");
  queue_.open();
  arrive(automatic, b, c);
  EXPECT_TRUE(runs(b));
  EXPECT_TRUE(runs(c));
  EXPECT_TRUE(waits(automatic));
  b.end(JobState::kFinished);
  c.end(JobState::kFinished);
  EXPECT_TRUE(runs(automatic));
}

TEST_F(QueueTest, TheFirstRankDecidesForAll) {
  Member& a = job("a");
  Member& b = job("b");
  queue_.follow_orders();
  queue_.open();
  arrive(a, b);
  EXPECT_TRUE(waits(a)) << "although it starts now";
  queue_.obey({.job = b.id(), .action = AutoSharing::Action::kStart, .reason = "now; places free: 1 of 2"});
  EXPECT_TRUE(runs(b));
  EXPECT_TRUE(waits(a));
}

TEST_F(QueueTest, KeepsTheOrdersForOtherRanks) {
  queue_.keep_orders();
  Member& a = job("a");
  Member& b = job("b");
  Member& c = job("c");
  queue_.open();
  arrive(a, b, c);
  EXPECT_TRUE(runs(a));
  EXPECT_TRUE(runs(b));
  EXPECT_EQ(queue_.take_orders().size(), 2U);
  b.end(JobState::kFinished);
  EXPECT_TRUE(runs(c));
  EXPECT_EQ(queue_.take_orders().front().job, c.id());
}

TEST(MaxConcurrentTest, OneAutomaticJobRunsAtATime) {
  ManualClock clock;
  Timeline timeline{1000};
  Gate gate{make_gate_policy("priority", {}), clock};
  Coordinator coordinator{clock, timeline, gate, {.max_concurrent = 1}};
  std::vector<std::unique_ptr<Member>> members;
  for (const std::string name : {"a", "b"}) {
    members.push_back(std::make_unique<Member>(
        coordinator, clock,
        NewJob{.name = name,
               .start = "auto",
               .steps = 100,
               .profile = ProfiledJob{"p" + name, 0.1, {{name == "a" ? "pb" : "pa", {1.1, 1.1}}}}}));
  }
  coordinator.open();
  EXPECT_TRUE(coordinator.wait_to_start(members[0]->id()));
  auto waiter = std::async(std::launch::async, [&] { return coordinator.wait_to_start(members[1]->id()); });
  EXPECT_EQ(waiter.wait_for(20ms), std::future_status::timeout);
  members[0]->end(JobState::kFinished);
  EXPECT_TRUE(waiter.get());
}

TEST(MaxConcurrentTest, RefusesNone) {
  ManualClock clock;
  Timeline timeline{1000};
  Gate gate{make_gate_policy("priority", {}), clock};
  EXPECT_THROW(Coordinator(clock, timeline, gate, {.max_concurrent = 0}), std::invalid_argument);
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
      primary_.report(JobReport::Kind::kHeld);
      gate_.wait_while(primary_.slot(), kHold);
      primary_.report(JobReport::Kind::kResumed);
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

TEST(Coordinator, JobsThatEndAndJobsThatComeMeetNoOther) {
  SteadyClock clock;
  Timeline timeline(1000);
  Gate gate(make_gate_policy("priority", {}), clock);
  Coordinator coordinator(clock, timeline, gate, {.max_concurrent = 2});
  coordinator.open();
  std::thread serves([&] { coordinator.serve(); });
  const auto run_jobs = [&](const std::string& name) {
    for (int i = 0; i < 200; ++i) {
      Member job(coordinator, clock, {.name = name, .start = i % 2 == 0 ? "now" : "after:" + name + "0"});
      ASSERT_TRUE(coordinator.wait_to_start(job.id()));
      job.step();
      job.end(JobState::kFinished);
    }
  };
  for (const std::string name : {"a", "b", "c"}) {
    Member first(coordinator, clock, {.name = name + "0"});
    ASSERT_TRUE(coordinator.wait_to_start(first.id()));
    first.end(JobState::kFinished);
  }
  std::thread a([&] { run_jobs("a"); });
  std::thread b([&] { run_jobs("b"); });
  run_jobs("c");
  a.join();
  b.join();
  EXPECT_TRUE(coordinator.wait_all(kNever));
  coordinator.dismiss();
  serves.join();
  EXPECT_EQ(coordinator.size(), 0U);
}

/// Calls `at_next_look` when the time is read; counts waits.
class AskedClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override {
    if (const auto then = std::exchange(at_next_look, {})) {
      then();
    }
    return 1ms;
  }
  void wait(EventCount& wake, std::uint32_t seen, std::chrono::nanoseconds) override {
    ++waits;
    wake.wait(seen, kNever);
  }

  mutable std::function<void()> at_next_look;
  std::atomic<int> waits = 0;
};

TEST(Coordinator, AStepThatComesWhileAJobBeginsToWaitIsNotLost) {
  AskedClock clock;
  Timeline timeline(1000);
  Gate gate(make_gate_policy("priority", {}), clock);
  Coordinator coordinator(clock, timeline, gate);
  Member primary(coordinator, clock, {.name = "a", .priority = Priority::kPrimary});
  Member secondary(coordinator, clock, {.name = "b", .start = "step:2"});
  coordinator.open();
  EXPECT_TRUE(coordinator.wait_to_start(primary.id()));
  std::jthread server([&] { coordinator.serve(); });
  while (clock.waits == 0) {
    std::this_thread::sleep_for(1ms);
  }
  coordinator.report({primary.id(), JobReport::Kind::kStepped, 1ms, 1});
  clock.at_next_look = [&] { coordinator.report({primary.id(), JobReport::Kind::kStepped, 1ms, 2}); };
  auto starts = std::async(std::launch::async, [&] { return coordinator.wait_to_start(secondary.id()); });
  EXPECT_EQ(starts.wait_for(5s), std::future_status::ready) << "the second step woke no thread";
  coordinator.dismiss();
  EXPECT_TRUE(starts.get());
}

TEST_F(CoordinatorTest, ADecisionThatFindsNoMemoryIsMadeLaterAndForAllRanks) {
  coordinator_.keep_orders();
  coordinator_.open();
  for (int news = 0; news < 12; ++news) {
    const std::string other = fmt::format("b{}", news);
    Member& primary = add_profiled(fmt::format("a{}", news), Priority::kPrimary, "now", 0.1, 100, other, 3);
    Member& secondary = add_profiled(other, Priority::kSecondary, "auto", 0.1, 100, primary.name(), 3);
    EXPECT_TRUE(start(primary).get());
    auto waiter = start(secondary);
    while (secondary.state() != JobState::kDelayed) {
      std::this_thread::yield();
    }
    coordinator_.take_orders();
    news_left = news;
    primary.end(JobState::kFinished);
    news_left = -1;
    clock_.advance(10ms);
    coordinator_.serve_once();
    ASSERT_EQ(waiter.wait_for(5s), std::future_status::ready) << "without memory after " << news << " allocations";
    EXPECT_EQ(coordinator_.take_orders().back().job, secondary.id());
    secondary.end(JobState::kFinished);
  }
}

TEST(Coordinator, WaitsBeforeItTriesAgainWithoutMemory) {
  AskedClock clock;
  Timeline timeline(1000);
  Gate gate(make_gate_policy("priority", {}), clock);
  Coordinator coordinator(clock, timeline, gate);
  Member job(coordinator, clock, {.name = "a", .start = "auto"});
  coordinator.open();
  std::jthread server([&] {
    news_left = 0;
    coordinator.serve();
    news_left = -1;
  });
  std::this_thread::sleep_for(20ms);
  EXPECT_LE(clock.waits, 3);
  coordinator.dismiss();
}

/// Blocks its caller, which holds the coordinator's lock.
class KeepingClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override {
    if (keeps.load()) {
      asked.count_down();
      release.wait();
    }
    return 1s;
  }
  void wait(EventCount&, std::uint32_t, std::chrono::nanoseconds) override {}

  std::atomic<bool> keeps = false;
  mutable std::latch asked{1};
  mutable std::latch release{1};
};

TEST(Coordinator, AThreadThatHoldsTheLockDelaysNoJobThatReports) {
  KeepingClock clock;
  Timeline timeline(1000);
  Gate gate(make_gate_policy("priority", {}), clock);
  Coordinator coordinator(clock, timeline, gate);
  Member job(coordinator, clock, {.name = "a", .priority = Priority::kPrimary});
  coordinator.open();
  EXPECT_TRUE(coordinator.wait_to_start(job.id()));
  clock.keeps = true;
  std::jthread other([&] { coordinator.serve_once(); });
  clock.asked.wait();
  auto step = std::async(std::launch::async, [&] {
    coordinator.report({job.id(), JobReport::Kind::kStepped, 1s, 1});
    return job.state();
  });
  EXPECT_EQ(step.wait_for(10s), std::future_status::ready) << "it waits for the lock";
  clock.keeps = false;
  clock.release.count_down();
}

TEST_F(CoordinatorTest, ServesReportsWithoutWaitingJobs) {
  Member& job = add("a", Priority::kPrimary, "now");
  EXPECT_TRUE(coordinator_.wait_to_start(job.id()));
  {
    std::jthread server([this] { coordinator_.serve(); });
    coordinator_.report({job.id(), JobReport::Kind::kSuspended, clock_.now()});
    while (job.state() != JobState::kSuspended) {
      std::this_thread::sleep_for(1ms);
    }
    coordinator_.report({job.id(), JobReport::Kind::kEnded, clock_.now(), 0, JobState::kCancelled});
    coordinator_.dismiss();
  }
  EXPECT_EQ(job.state(), JobState::kCancelled) << "what is there when it is dismissed is applied";
}

}  // namespace
}  // namespace torchshare
