#include "runtime/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
    return coordinator_.add(name, priority, parse_start(start));
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

  ManualClock clock_;
  Timeline timeline_{1000};
  Coordinator coordinator_{clock_, timeline_};
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

TEST_F(CoordinatorTest, IgnoresMovesOfEndedJobs) {
  const JobId job = add("a", Priority::kPrimary, "now");
  EXPECT_TRUE(coordinator_.wait_to_start(job));
  EXPECT_TRUE(coordinator_.move(job, JobState::kCancelled));
  EXPECT_FALSE(coordinator_.move(job, JobState::kFinished));
  EXPECT_EQ(coordinator_.state(job), JobState::kCancelled);
}

}  // namespace
}  // namespace torchshare
