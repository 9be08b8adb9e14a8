#include "sharing/start_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Jobs for a decision, in order.
class Jobs {
 public:
  Jobs& add(std::string_view name, Priority priority, std::string_view start, JobState state = JobState::kPending,
            std::uint64_t steps = 0) {
    starts_.push_back(parse_start(start));
    views_.push_back({name, priority, state, steps, &starts_.back()});
    return *this;
  }
  StartDecision decide(std::size_t self, std::chrono::nanoseconds since_arrival = 0ns) const {
    return decide_start(views_, self, since_arrival);
  }
  void check() const { check_starts(views_); }

 private:
  std::deque<StartCondition> starts_;
  std::vector<JobView> views_;
};

constexpr auto kPrimary = Priority::kPrimary;
constexpr auto kSecondary = Priority::kSecondary;

TEST(StartPolicy, NowStartsAtOnce) {
  EXPECT_TRUE(Jobs().add("a", kPrimary, "now").decide(0).start);
}

TEST(StartPolicy, SecondsCountFromArrival) {
  Jobs jobs;
  jobs.add("a", kPrimary, "2");
  EXPECT_FALSE(jobs.decide(0, 1500ms).start);
  EXPECT_EQ(jobs.decide(0, 1500ms).retry_after, 500ms);
  EXPECT_TRUE(jobs.decide(0, 2s).start);
}

TEST(StartPolicy, AfterWaitsForAnyKindOfEnd) {
  for (const JobState state : {JobState::kPending, JobState::kDelayed, JobState::kRunning, JobState::kSuspended}) {
    EXPECT_FALSE(Jobs().add("a", kPrimary, "now", state).add("b", kSecondary, "after:a").decide(1).start);
  }
  for (const JobState state : {JobState::kFinished, JobState::kFailed, JobState::kCancelled}) {
    EXPECT_TRUE(Jobs().add("a", kPrimary, "now", state).add("b", kSecondary, "after:a").decide(1).start);
  }
}

TEST(StartPolicy, StepCountsThePrimarysStepsOrItsEnd) {
  const auto at = [](JobState state, std::uint64_t steps) {
    return Jobs().add("a", kPrimary, "now", state, steps).add("b", kSecondary, "step:50").decide(1);
  };
  EXPECT_FALSE(at(JobState::kRunning, 49).start);
  EXPECT_TRUE(at(JobState::kRunning, 50).start);
  EXPECT_TRUE(at(JobState::kFailed, 3).start);
  EXPECT_EQ(at(JobState::kFailed, 3).reason, "step:50: job 'a' failed after 3 steps");
}

TEST(StartPolicy, RefusesUnknownJobsItselfAndCycles) {
  EXPECT_THAT([] { Jobs().add("a", kPrimary, "after:b").check(); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("job 'a': start 'after:b' names no job")));
  EXPECT_THAT([] { Jobs().add("a", kPrimary, "after:a").check(); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("waits for itself")));
  EXPECT_THAT([] { Jobs().add("a", kPrimary, "after:b").add("b", kSecondary, "step:5").check(); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("'a' -> 'b' -> 'a'")));
  EXPECT_THAT(
      [] { Jobs().add("a", kPrimary, "now").add("b", kPrimary, "after:c").add("c", kPrimary, "after:b").check(); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("'b' -> 'c' -> 'b'")));
}

TEST(StartPolicy, RefusesStepsWithoutAJobToCountThem) {
  EXPECT_THAT([] { Jobs().add("a", kPrimary, "step:5").add("b", kSecondary, "now").check(); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("needs a job of the same or higher priority")));
  Jobs().add("a", kSecondary, "now").add("b", kSecondary, "step:5").check();  // equal priority suffices
}

}  // namespace
}  // namespace torchshare
