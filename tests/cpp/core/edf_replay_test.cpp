#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

#include "fakes/periodic_sets.h"
#include "planner/demand_bound.h"
#include "planner/periodic_replay.h"
#include "policy/edf_policy.h"
#include "policy/grace.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

PeriodicReplay replay(std::string_view policy, const std::vector<ReplayedTask>& tasks,
                      const std::vector<nanoseconds>& others, nanoseconds allowed) {
  return replay_periodic(tasks, others, policy, allowed, 3s);
}

TEST(EdfReplay, AnOpEndsBeforeTheReleaseOrAsLateAsIsAllowed) {
  // A unit of 4 ms of each 10 ms, due after 5 ms, leaves 6 ms: two ops of 3 ms, or one of 3.5. If 1 ms is allowed, two.
  const std::vector<ReplayedTask> camera{{.task = {10ms, 5ms, 4ms}}};
  const PeriodicReplay found = replay("edf", camera, {3ms}, 0ms);
  EXPECT_EQ(found.missed, 0U);
  EXPECT_EQ(found.units, 300U);
  EXPECT_NEAR(to_seconds(found.others), 300 * 0.006, 0.01);
  EXPECT_NEAR(to_seconds(replay("edf", camera, {3500us}, 0ms).others), 300 * 0.0035, 0.01);
  EXPECT_NEAR(to_seconds(replay("edf", camera, {3500us}, 1ms).others), 300 * 0.006, 0.6);
  EXPECT_EQ(replay("edf", camera, {3500us}, 1ms).missed, 0U);
  EXPECT_GT(replay("priority", camera, {3500us}, 0ms).missed, 100U);
}

TEST(EdfReplay, TheEarliestDeadlineIsMetWherePrioritiesMissIt) {
  // At a utilization of 0.96, deadline-monotonic priorities miss deadlines of the second job (Liu and Layland 1973).
  std::vector<ReplayedTask> tasks{{.task = {10ms, 10ms, 4900us}, .ops = 49},
                                  {.task = {14ms, 14ms, 6600us}, .ops = 66, .priority = Priority::kSecondary}};
  EXPECT_EQ(replay("edf", tasks, {}, 0ms).missed, 0U);
  EXPECT_GT(replay("strict", tasks, {}, 0ms).missed, 10U);
}

TEST(EdfReplay, NoAcceptedSetEverMissesADeadline) {
  const char* const given = std::getenv("TORCHSHARE_SETS");
  const int sets = given != nullptr ? std::atoi(given) : 150;
  std::mt19937_64 random(7);
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  std::size_t accepted = 0;
  std::size_t units = 0;
  std::size_t missed_beyond = 0;
  nanoseconds others_time{0};
  for (int i = 0; i < sets; ++i) {
    std::vector<ReplayedTask> tasks;
    std::vector<PeriodicTask> padded;
    for (PeriodicTask task : random_tasks(random, 0.95)) {
      const int ops = static_cast<int>(between(1, 5));
      task.longest_op = task.cost / ops + 1ns;
      tasks.push_back({.task = task, .ops = ops, .first_release = nanoseconds(between(0, task.period.count()))});
      task.cost += EdfPolicy::kUnitOverhead;
      padded.push_back(task);
    }
    const nanoseconds allowed = demand_bound(padded).blocking_allowed - kLookAgain;
    if (allowed < 0ns) {
      continue;
    }
    std::vector<nanoseconds> others;
    for (auto k = between(0, 2); k > 0; --k) {
      others.emplace_back(between(300'000, 20'000'000));
    }
    const PeriodicReplay found = replay("edf", tasks, others, allowed);
    ASSERT_EQ(found.missed, 0U) << "set " << i << " of " << tasks.size() << " jobs";
    missed_beyond += replay("edf", tasks, others, allowed + 20ms).missed;
    ++accepted;
    units += found.units;
    others_time += found.others;
  }
  EXPECT_GT(accepted, static_cast<std::size_t>(sets) / 4);
  EXPECT_GT(units, 100 * accepted);
  EXPECT_GT(others_time, 10ms * accepted);
  EXPECT_GT(missed_beyond, 0U);  // where others may stay longer than the bound says
}

}  // namespace
}  // namespace torchshare
