#include "planner/demand_bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "fakes/periodic_sets.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

/// The least room over all intervals up to `horizon`, by the formula itself.
nanoseconds least_room(const std::vector<PeriodicTask>& tasks, nanoseconds horizon) {
  nanoseconds room = kNever;
  for (const PeriodicTask& each : tasks) {
    for (nanoseconds at = each.deadline; at <= horizon; at += each.period) {
      nanoseconds demand{0};
      for (const PeriodicTask& task : tasks) {
        demand += at >= task.deadline ? ((at - task.deadline) / task.period + 1) * task.cost : 0ns;
      }
      room = std::min(room, at - demand);
    }
  }
  return room;
}

TEST(DemandBound, ASingleJobsRoomIsItsSlack) {
  const auto found = demand_bound(std::vector<PeriodicTask>{{.period = 33ms, .deadline = 25ms, .cost = 8ms}});
  EXPECT_TRUE(found.is_feasible);
  EXPECT_EQ(found.room, 17ms);
  EXPECT_EQ(found.at, 25ms);
  EXPECT_NEAR(found.utilization, 8.0 / 33, 1e-12);
}

TEST(DemandBound, TwoJobsMeetInTheIntervalInWhichBothAreDue) {
  // By hand: 5 of 10 until 10, 5 + 6 = 11 of 12 until 12, 16 of 20 until 20.
  const std::vector<PeriodicTask> tasks{{10ms, 10ms, 5ms}, {20ms, 12ms, 6ms}};
  const auto found = demand_bound(tasks);
  EXPECT_EQ(found.room, 1ms);
  EXPECT_EQ(found.at, 12ms);
}

TEST(DemandBound, TheThirdJobOverloadsAnInterval) {
  const std::vector<PeriodicTask> tasks{{10ms, 10ms, 5ms}, {20ms, 12ms, 6ms}, {40ms, 12ms, 2ms}};
  const auto found = demand_bound(tasks);
  EXPECT_FALSE(found.is_feasible);
  EXPECT_EQ(found.room, -1ms);
  EXPECT_LT(found.utilization, 1);
}

TEST(DemandBound, AFullDeviceIsNotFeasible) {
  EXPECT_FALSE(demand_bound(std::vector<PeriodicTask>{{10ms, 10ms, 10ms}}).is_feasible);
  EXPECT_FALSE(demand_bound(std::vector<PeriodicTask>{{10ms, 10ms, 5ms}, {10ms, 10ms, 6ms}}).is_feasible);
}

TEST(DemandBound, RefusesTimesThatAreNotPositive) {
  EXPECT_THROW(demand_bound(std::vector<PeriodicTask>{{0ms, 10ms, 5ms}}), std::invalid_argument);
  EXPECT_THROW(demand_bound(std::vector<PeriodicTask>{{10ms, 10ms, 0ms}}), std::invalid_argument);
}

TEST(DemandBound, EqualsTheFormulaOverAllIntervals) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    const auto tasks = random_tasks(random, 0.95);
    const auto found = demand_bound(tasks);
    ASSERT_EQ(found.room, least_room(tasks, 20s)) << i;
  }
}

TEST(DemandBound, AWeekBesideAMillisecondTakesNoTime) {
  // The intervals end where no longer one can have less room: not at the longest deadline.
  const auto found = demand_bound(std::vector<PeriodicTask>{{1ms, 1ms, 500us}, {168h, 168h, 1h}});
  EXPECT_EQ(found.room, 500us);
}

TEST(DemandBound, AnOpOfAnotherPeriodicJobIsNotInterrupted) {
  std::vector<PeriodicTask> tasks{{10ms, 10ms, 2ms, 1ms}};
  EXPECT_EQ(demand_bound(tasks).blocking_allowed, 8ms);
  tasks.push_back({20ms, 20ms, 3ms, 2ms});
  EXPECT_EQ(demand_bound(tasks).blocking_allowed, 6ms);
  EXPECT_EQ(demand_bound({}).blocking_allowed, kNever);
}

}  // namespace
}  // namespace torchshare
