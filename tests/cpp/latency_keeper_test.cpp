#include "runtime/latency_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fakes/fake_device.h"
#include "fakes/member.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

/// A server beside a training, with a fake clock.
class PromisedPair : public ::testing::Test {
 protected:
  explicit PromisedPair(std::optional<double> max_slowdown = {})
      : coordinator_(clock_, timeline_, gate_, {.max_slowdown = max_slowdown}) {
    EXPECT_TRUE(coordinator_.wait_to_start(server_.id()));
    EXPECT_TRUE(coordinator_.wait_to_start(training_.id()));
  }
  void answer(int count, std::chrono::nanoseconds latency) {
    for (int i = 0; i < count; ++i) {
      clock_.advance(10ms);
      server_.answer(latency);
    }
  }
  double share() const { return gate_.pace().share; }
  std::vector<std::string> decisions() const {
    std::vector<std::string> all;
    for (const Event& event : timeline_.events()) {
      if (event.kind == EventKind::kDecision) {
        all.push_back(event.detail);
      }
    }
    return all;
  }

  ManualClock clock_;
  Timeline timeline_{1000};
  Gate gate_{make_gate_policy("priority", {}), clock_};
  Coordinator coordinator_;
  Member server_{coordinator_, clock_, {.name = "server", .priority = Priority::kPrimary}};
  Member training_{coordinator_, clock_, {.name = "training"}};
};

TEST_F(PromisedPair, LowerJobsRunAllTheTimeWithoutAPromise) {
  answer(100, 1s);
  EXPECT_EQ(share(), 1);
}

TEST_F(PromisedPair, LateAnswersHoldLowerJobsAndAnswersInTimeReleaseThem) {
  server_.promise({0.9, 0.02});
  EXPECT_EQ(share(), 1) << "until the first answer";
  answer(1, 1ms);
  EXPECT_LT(share(), 1);
  answer(200, 1ms);
  EXPECT_EQ(share(), 1);
  answer(30, 100ms);
  EXPECT_EQ(share(), 0);
  EXPECT_THAT(decisions(), Contains(HasSubstr("slo: p90<20ms: ")));
  answer(200, 1ms);
  EXPECT_GT(share(), 0);
  EXPECT_EQ(coordinator_.latency(server_.id())->misses, 30U);
  EXPECT_FALSE(coordinator_.latency(server_.id())->cannot_hold);
}

TEST_F(PromisedPair, APromiseOfALowerJobDoesNotReplaceThatOfAHigherOne) {
  server_.promise({0.9, 0.02});
  answer(200, 1ms);
  answer(30, 100ms);
  ASSERT_EQ(share(), 0);
  EXPECT_THAT(decisions(), Not(Contains(HasSubstr("not kept"))));
  training_.promise({0.9, 0.02});
  EXPECT_EQ(share(), 0);
  EXPECT_THAT(decisions(), Contains("slo: p90<20ms is not kept while a job of higher priority runs"));
}

TEST_F(PromisedPair, TheTimelineSaysWhenAnotherJobOutranksTheServerAndWhenItHasEnded) {
  training_.promise({0.9, 0.02});
  training_.answer(1ms);
  EXPECT_THAT(decisions(), Contains("slo: p90<20ms is not kept while a job of higher priority runs").Times(1));
  server_.end(JobState::kFinished);
  training_.answer(1ms);
  training_.answer(1ms);
  EXPECT_THAT(decisions(), Contains("slo: p90<20ms is kept again").Times(1));
  EXPECT_EQ(coordinator_.latency(training_.id())->misses, 0U);
}

TEST_F(PromisedPair, OfTwoServersOfOnePriorityTheOneThatNeedsMoreSetsThePace) {
  Member other(coordinator_, clock_, {.name = "other", .priority = Priority::kPrimary});
  EXPECT_TRUE(coordinator_.wait_to_start(other.id()));
  server_.promise({0.9, 0.02});
  other.promise({0.9, 1});
  answer(30, 100ms);
  ASSERT_EQ(share(), 0);
  for (int i = 0; i < 300; ++i) {
    other.answer(1ms);
  }
  EXPECT_EQ(share(), 0);
  server_.end(JobState::kFinished);
  EXPECT_EQ(share(), 1);
  other.end(JobState::kFinished);
}

TEST_F(PromisedPair, APromiseThatWasMissedAloneIsKeptAgainAfterASpike) {
  server_.promise({0.9, 0.02});
  answer(60, 100ms);
  ASSERT_TRUE(coordinator_.latency(server_.id())->cannot_hold);
  answer(100, 1ms);
  EXPECT_EQ(share(), 0) << "too early to tell";
  answer(400, 1ms);
  EXPECT_FALSE(coordinator_.latency(server_.id())->cannot_hold);
  EXPECT_GT(share(), 0);
  EXPECT_THAT(decisions(), Contains(HasSubstr("lower jobs may run again")));
}

TEST_F(PromisedPair, APromiseThatIsMissedAloneStaysMissed) {
  server_.promise({0.9, 0.02});
  for (int i = 0; i < 100; ++i) {
    answer(4, 1ms);
    answer(1, 100ms);
  }
  EXPECT_TRUE(coordinator_.latency(server_.id())->cannot_hold);
  EXPECT_EQ(share(), 0);
}

TEST_F(PromisedPair, APromiseEndsWithItsJob) {
  server_.promise({0.9, 0.02});
  server_.end(JobState::kFinished);
  EXPECT_EQ(share(), 1);
  EXPECT_TRUE(coordinator_.latency(server_.id()));
}

TEST_F(PromisedPair, AnswersWithoutALowerJobBesideDoNotCount) {
  server_.promise({0.9, 0.02});
  training_.end(JobState::kFinished);
  answer(100, 1s);
  EXPECT_EQ(coordinator_.latency(server_.id())->answered, 0U);
}

class BoundedServer : public PromisedPair {
 protected:
  BoundedServer() : PromisedPair(0.05) {}
};

TEST_F(BoundedServer, ABoundIsOneOnTheTimeOfItsAnswers) {
  answer(100, 2ms);
  EXPECT_LT(share(), 1);
  EXPECT_NEAR(coordinator_.bound(server_.id())->alone, 0.002, 1e-4);
}

TEST_F(BoundedServer, AServerThatNobodyAsksLimitsNoOther) {
  for (const int answers : {2, 100}) {
    answer(answers, 2ms);
    EXPECT_GT(gate_.pace().until, clock_.now());
    clock_.advance(1min);
    EXPECT_LT(gate_.pace().until, clock_.now()) << answers << " answers";
  }
}

TEST_F(BoundedServer, StepsThatWaitForRequestsDoNotCount) {
  for (int request = 0; request < 100; ++request) {
    clock_.advance(20ms);
    server_.step_after_request();
    server_.answer(2ms);
  }
  EXPECT_EQ(coordinator_.bound(server_.id())->unit, BoundUnit::kRequest);
  EXPECT_NEAR(coordinator_.bound(server_.id())->alone, 0.002, 1e-4);
}

TEST_F(BoundedServer, ATrainingThatAlsoAnswersIsBoundByItsSteps) {
  for (int step = 0; step < 100; ++step) {
    clock_.advance(20ms);
    server_.step();
    server_.answer(2ms);
  }
  EXPECT_EQ(coordinator_.bound(server_.id())->unit, BoundUnit::kStep);
  EXPECT_NEAR(coordinator_.bound(server_.id())->alone, 0.02, 1e-4);
}

TEST_F(BoundedServer, ATrainingThatThenAnswersIsBoundByItsAnswers) {
  for (int step = 0; step < 100; ++step) {
    clock_.advance(20ms);
    server_.step();
  }
  clock_.advance(10s);
  answer(5, 2ms);
  EXPECT_NEAR(coordinator_.bound(server_.id())->alone, 0.02, 1e-4) << "a few answers while it evaluates";
  answer(100, 2ms);
  EXPECT_NEAR(coordinator_.bound(server_.id())->alone, 0.002, 1e-4);
}

}  // namespace
}  // namespace torchshare
