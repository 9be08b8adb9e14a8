#include "runtime/start_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <thread>

#include "fakes/coordinator_fixture.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

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
    return waiter.wait_for(60s) == std::future_status::ready && waiter.get() && member.state() == JobState::kRunning;
  }

  Coordinator queue_{clock_, timeline_, gate_, {.max_concurrent = 2}};
  std::vector<std::unique_ptr<Member>> queued_;  // after queue_
  std::map<Member*, std::future<bool>> waiters_;
};

/// Two jobs run, and a third one waits.
class FullQueueTest : public QueueTest {
 protected:
  void SetUp() override {
    queue_.open();
    arrive(a_, b_, c_);
    EXPECT_TRUE(runs(a_));
    EXPECT_TRUE(runs(b_));
    EXPECT_TRUE(waits(c_));
  }

  Member& a_ = job("a");
  Member& b_ = job("b");
  Member& c_ = job("c");
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

TEST_F(FullQueueTest, StartsTheHighestPriorityFirst) {
  Member& d = job("d", Priority::kPrimary);
  arrive(d);
  EXPECT_TRUE(waits(c_));
  EXPECT_TRUE(waits(d));
  a_.end(JobState::kFinished);
  EXPECT_TRUE(runs(d));
  EXPECT_TRUE(waits(c_));
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

TEST_F(FullQueueTest, ASuspendedJobKeepsItsPlace) {
  a_.send(JobMessage::Kind::kSuspended);
  EXPECT_TRUE(waits(c_));
  queue_.give_up(a_.id());
  EXPECT_TRUE(runs(c_));
}

TEST_F(FullQueueTest, ASpilledJobGivesUpItsPlace) {
  Member& d = job("d");
  arrive(d);
  a_.send(JobMessage::Kind::kSpilled);
  EXPECT_TRUE(runs(c_));
  a_.send(JobMessage::Kind::kRestored);
  b_.end(JobState::kFinished);
  EXPECT_TRUE(waits(d)) << "it came back";
  a_.end(JobState::kFinished);
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
  CoordinatorParts<ManualClock> parts({.max_concurrent = 1});
  auto& [clock, timeline, gate, coordinator] = parts;
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
  EXPECT_THROW(CoordinatorParts<ManualClock>({.max_concurrent = 0}), std::invalid_argument);
}

}  // namespace
}  // namespace torchshare
