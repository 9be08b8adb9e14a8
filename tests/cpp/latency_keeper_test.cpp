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

}  // namespace
}  // namespace torchshare
