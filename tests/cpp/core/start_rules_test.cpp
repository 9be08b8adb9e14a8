#include "sharing/start_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Jobs for a decision, in order of submission.
class Jobs {
 public:
  Jobs& add(std::string_view name, Priority priority, std::string_view start, JobState state = JobState::kPending,
            std::uint64_t steps = 0) {
    const auto id = static_cast<JobId>(jobs_.size());
    jobs_.push_back(std::make_shared<const JobRecord>(
        JobRecord{id, std::string(name), priority, parse_start(start), state, steps}));
    records_.add(jobs_.back());
    return *this;
  }
  StartDecision decide(std::size_t self, std::chrono::nanoseconds since_arrival = 0ns) const {
    return jobs_[self]->start->decide({*jobs_[self], records_, since_arrival});
  }
  void check() const {
    StartCheck starts(records_);
    for (const auto& job : jobs_) {
      starts.check(*job);
    }
  }
  std::vector<std::string> lost() const { return lost_starts(records_); }

 private:
  std::vector<std::shared_ptr<const JobRecord>> jobs_;
  JobRecords records_;
};

constexpr auto kPrimary = Priority::kPrimary;
constexpr auto kSecondary = Priority::kSecondary;

TEST(StartRules, EachFormIsReadAndSaysWhatItDependsOn) {
  EXPECT_EQ(parse_start("now")->inputs(), StartInputs{});
  EXPECT_EQ(parse_start("auto")->inputs(), (StartInputs{.steps = true, .plan = true}));
  EXPECT_EQ(parse_start("after:a b")->inputs(), StartInputs{.jobs = true});
  EXPECT_EQ(parse_start("step:50")->inputs(), (StartInputs{.jobs = true, .steps = true}));
  EXPECT_EQ(parse_start("2.5")->inputs(), StartInputs{.time = true});
}

TEST(StartRules, OtherTextIsRefused) {
  for (const char* text : {"", "soon", "after:", "step:", "step:-1", "step:1.5", "-1", "nan", "inf", "1e10", "2s"}) {
    EXPECT_THAT([&] { parse_start(text); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(
                    "start must be 'now', 'auto', 'after:<job>', 'step:<k>' (steps of the primary, k >= 0) or 0 to 1e9 "
                    "seconds, got '" +
                    std::string(text) + "'")));
  }
}

TEST(StartRules, NowStartsAtOnce) {
  EXPECT_TRUE(Jobs().add("a", kPrimary, "now").decide(0).start);
}

TEST(StartRules, AutoLeavesTheDecisionToThePlan) {
  EXPECT_FALSE(Jobs().add("a", kPrimary, "auto").decide(0).start);
}

TEST(StartRules, SecondsCountFromArrival) {
  Jobs jobs;
  jobs.add("a", kPrimary, "2").add("b", kPrimary, "1e-3");
  EXPECT_FALSE(jobs.decide(0, 1500ms).start);
  EXPECT_EQ(jobs.decide(0, 1500ms).retry_after, 500ms);
  EXPECT_TRUE(jobs.decide(0, 2s).start);
  EXPECT_EQ(jobs.decide(0, 2s).reason, "2 s after arrival");
  EXPECT_EQ(jobs.decide(1).retry_after, 1ms);
}

TEST(StartRules, AfterWaitsForAnyKindOfEnd) {
  for (const JobState state : {JobState::kPending, JobState::kDelayed, JobState::kRunning, JobState::kSuspended}) {
    EXPECT_FALSE(Jobs().add("a b", kPrimary, "now", state).add("b", kSecondary, "after:a b").decide(1).start);
  }
  for (const JobState state : {JobState::kFinished, JobState::kFailed, JobState::kCancelled}) {
    EXPECT_TRUE(Jobs().add("a b", kPrimary, "now", state).add("b", kSecondary, "after:a b").decide(1).start);
  }
}

TEST(StartRules, StepCountsThePrimarysStepsOrItsEnd) {
  const auto at = [](JobState state, std::uint64_t steps) {
    return Jobs().add("a", kPrimary, "now", state, steps).add("b", kSecondary, "step:50").decide(1);
  };
  EXPECT_FALSE(at(JobState::kRunning, 49).start);
  EXPECT_TRUE(at(JobState::kRunning, 50).start);
  EXPECT_EQ(at(JobState::kRunning, 50).reason, "step:50: job 'a' has done 50 steps");
  EXPECT_TRUE(at(JobState::kFailed, 3).start);
  EXPECT_EQ(at(JobState::kFailed, 3).reason, "step:50: job 'a' failed after 3 steps");
  EXPECT_FALSE(parse_start("step:50")->enough(49));
  EXPECT_TRUE(parse_start("step:50")->enough(50));
  EXPECT_TRUE(parse_start("now")->enough(0));
}

TEST(StartRules, UnknownJobsTheJobItselfAndCyclesAreRefused) {
  EXPECT_THAT([] { Jobs().add("a", kPrimary, "after:b").check(); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("job 'a': start 'after:b' names no job")));
  EXPECT_THAT([] { Jobs().add("a", kPrimary, "after:a").check(); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("waits for itself")));
  EXPECT_THAT([] { Jobs().add("a", kPrimary, "after:b").add("b", kSecondary, "step:5").check(); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("'a' -> 'b' -> 'a'")));
  EXPECT_THAT(
      [] { Jobs().add("a", kPrimary, "after:b").add("b", kPrimary, "after:c").add("c", kPrimary, "after:b").check(); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("'b' -> 'c' -> 'b'")));
}

TEST(StartRules, StepsWithoutAJobToCountThemAreRefused) {
  EXPECT_THAT([] { Jobs().add("a", kPrimary, "step:5").add("b", kSecondary, "now").check(); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("needs a job of the same or higher priority")));
  Jobs().add("a", kSecondary, "now").add("b", kSecondary, "step:5").check();  // equal priority suffices
}

TEST(StartRules, AJobThatHasStartedWaitsForNone) {
  Jobs().add("a", kPrimary, "after:gone", JobState::kRunning).add("b", kPrimary, "after:a").check();
  Jobs().add("a", kPrimary, "after:b", JobState::kFinished).add("b", kPrimary, "after:a").check();
}

TEST(StartRules, ThoseThatCanNeverHoldAreTold) {
  EXPECT_THAT(Jobs().add("a", kPrimary, "step:5").add("b", kSecondary, "after:gone").add("c", kSecondary, "9").lost(),
              ElementsAre("a", "b"));
}

}  // namespace
}  // namespace torchshare
