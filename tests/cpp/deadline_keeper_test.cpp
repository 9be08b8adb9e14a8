#include "runtime/deadline_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fakes/coordinator_fixture.h"
#include "runtime/periodic_units.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class Deadlines : public ::testing::Test {
 protected:
  JobId add(const std::string& name, const PeriodicTask& task) {
    jobs_.push_back(std::make_unique<Member>(coordinator_, clock_, NewJob{.name = name, .task = task}));
    return jobs_.back()->id();
  }
  void unit(JobId job, std::chrono::nanoseconds took, int times = 1) {
    for (int i = 0; i < times; ++i) {
      coordinator_.send(
          {.job = job, .kind = JobMessage::Kind::kUnit, .at = clock_.now(), .took = took, .longest_op = took / 2});
      coordinator_.serve_once();
    }
  }

  ManualClock clock_;
  Timeline timeline_{1000};
  Gate gate_{make_gate_policy("edf", {}), clock_};
  Coordinator coordinator_{clock_, timeline_, gate_, {.policy = "edf"}};
  std::vector<std::unique_ptr<Member>> jobs_;
};

TEST_F(Deadlines, AJobThatWouldMakeAnotherMissIsRefusedWithTheIntervalAndLeavesNothing) {
  add("camera", {33ms, 25ms, 10ms, 1ms});
  EXPECT_THAT(
      [&] { add("lidar", {50ms, 12ms, 11ms, 1ms}); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("job 'lidar': its deadlines cannot be met: within 12.0 ms")))
      << "by hand: 11.1 of 12 ms are needed, and 1 ms for an op of the camera";
  EXPECT_THAT([&] { add("lidar", {50ms, 30ms, 20ms, 1ms}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("within 30.0 ms, periodic jobs need 30.2 ms")));
  EXPECT_THAT([&] { add("lidar", {50ms, 50ms, 40ms, 1ms}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("periodic jobs would need 111 % of the time")));
  add("lidar", {50ms, 50ms, 20ms, 1ms});
}

TEST_F(Deadlines, TheRoomOfAJobThatHasEndedIsFreeAgain) {
  add("camera", {33ms, 25ms, 20ms, 1ms});
  EXPECT_THROW(add("lidar", {33ms, 25ms, 20ms, 1ms}), std::invalid_argument);
  coordinator_.cancel_start(jobs_.front()->id());
  add("lidar", {33ms, 25ms, 20ms, 1ms});
}

TEST_F(Deadlines, AnUnknownCostIsMeasuredAfterAWarmUp) {
  const JobId camera = add("camera", {33ms, 25ms});
  unit(camera, 24ms, DeadlineKeeper::kWarmUp);
  unit(camera, 5ms, DeadlineKeeper::kEnough);
  EXPECT_EQ(coordinator_.deadline_problem(), "");
  EXPECT_THROW(add("lidar", {33ms, 25ms, 20ms, 1ms}), std::invalid_argument) << "camera needs 5.5 ms";
  EXPECT_THROW(add("lidar", {33ms, 25ms, 17ms, 1ms}), std::invalid_argument) << "and its ops take 2.5 ms";
  unit(camera, 40ms, DeadlineKeeper::kEnough);
  EXPECT_THAT(coordinator_.deadline_problem(), HasSubstr("periodic jobs would need 13"));
}

TEST_F(Deadlines, OtherPoliciesRefuseNothing) {
  Coordinator coordinator{clock_, timeline_, gate_, {.policy = "strict"}};
  Member one(coordinator, clock_, {.name = "one", .task = PeriodicTask{33ms, 25ms, 20ms, 1ms}});
  Member two(coordinator, clock_, {.name = "two", .task = PeriodicTask{33ms, 25ms, 20ms, 1ms}});
}

class Units : public ::testing::Test {
 protected:
  Units() { slot_.name = "camera"; }
  void open(std::chrono::nanoseconds now) { units_.open({100ms, 50ms, 20ms}, now); }
  void unit(std::chrono::nanoseconds begin, std::chrono::nanoseconds end, std::chrono::nanoseconds waits = 0ns) {
    units_.begin(begin, waited_);
    waited_ += waits;
    units_.end(end, waited_);
  }

  ManualClock clock_;
  Gate gate_{make_gate_policy("edf", {}), clock_};
  Slot slot_{Priority::kPrimary};
  Gate::Membership member_{gate_, slot_, nullptr};
  PeriodicUnits units_{gate_, slot_};
  std::chrono::nanoseconds waited_{0};
};

TEST_F(Units, AreReleasedOncePerPeriodAndCountAsMetOrMissed) {
  open(1s);
  EXPECT_EQ(units_.next_release(1s), 1s);
  unit(1s, 1s + 50ms);
  EXPECT_EQ(units_.next_release(1050ms), 1100ms);
  unit(1100ms, 1151ms);
  const PeriodStats stats = units_.stats().value();
  EXPECT_EQ(stats.met, 1U);
  EXPECT_EQ(stats.missed, 1U);
  EXPECT_EQ(stats.worst_lateness, 1ms);
  EXPECT_THAT(stats.misses, ElementsAre("1.0 ms late: it took 51.0 ms instead of 20.0"));
}

TEST_F(Units, WhoseDeadlinesHavePassedAreSkipped) {
  open(1s);
  EXPECT_EQ(units_.next_release(1049ms), 1s);
  EXPECT_EQ(units_.next_release(1050ms), 1100ms);
  EXPECT_EQ(units_.next_release(1349ms), 1300ms);
  EXPECT_EQ(units_.stats()->skipped, 3U);
}

TEST_F(Units, AMissNamesWhatTookTheTime) {
  open(1s);
  unit(1040ms, 1055ms);
  unit(1100ms, 1160ms, 45ms);
  Slot other(Priority::kSecondary);
  other.name = "train";
  const Gate::Membership member(gate_, other, nullptr);
  other.enter();
  unit(1200ms, 1260ms);
  EXPECT_THAT(units_.stats()->misses,
              ElementsAre("5.0 ms late: it began 40.0 ms after its release",
                          "10.0 ms late: it waited 45.0 ms at the gate for other periodic jobs",
                          "10.0 ms late: it took 60.0 ms instead of 20.0, and began beside an op of train"));
}

TEST_F(Units, OthersAreKeptOutOfAUnitAndOfTheTimeBeforeARelease) {
  Slot other(Priority::kPrimary);
  const Gate::Membership member(gate_, other, nullptr);
  other.next_op.store(std::chrono::nanoseconds(10ms).count());
  other.is_guess.store(false);
  EXPECT_FALSE(gate_.is_lower(other));
  open(0ms);
  EXPECT_TRUE(gate_.is_lower(other));
  EXPECT_FALSE(gate_.is_lower(slot_));
  units_.begin(0ms, 0ns);
  EXPECT_FALSE(gate_.try_enter(other));
  clock_.advance(20ms);
  units_.end(clock_.now(), 0ns);
  EXPECT_TRUE(gate_.try_enter(other));
  clock_.advance(71ms);
  EXPECT_FALSE(gate_.try_enter(other)) << "9 ms are left";
  gate_.set_blocking_allowed(1ms);
  EXPECT_TRUE(gate_.try_enter(other));
  clock_.advance(9ms);
  units_.close();
  EXPECT_FALSE(gate_.is_lower(other));
}

}  // namespace
}  // namespace torchshare
