#include "planner/queue_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace torchshare {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

PlannedJob job(const std::string& name, double seconds) {
  PlannedJob made;
  made.name = name;
  made.remaining_steps = seconds;
  made.time.alpha = 1;
  return made;
}

/// Simulates every order of the jobs with every choice between joining the running job and waiting for its end, in
/// small pieces of time. Independent of the planner's code.
class Reference {
 public:
  Reference(std::vector<double> alone, std::vector<std::vector<double>> slow)
      : alone_(std::move(alone)), slow_(std::move(slow)) {}

  double least_average() const {
    const auto n = alone_.size();
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), 0U);
    double best = 1e300;
    do {
      for (unsigned joins = 0; joins < 1U << n; ++joins) {
        best = std::min(best, average(order, joins));
      }
    } while (std::next_permutation(order.begin(), order.end()));
    return best;
  }

 private:
  /// Jobs begin in that order; the i-th waits for an empty device unless bit i is set.
  double average(const std::vector<std::size_t>& order, unsigned joins) const {
    std::vector<double> left = alone_;
    std::vector<std::size_t> running;
    std::size_t next = 0;
    double now = 0;
    double sum = 0;
    while (next < order.size() || !running.empty()) {
      while (next < order.size() && (running.empty() || (running.size() == 1 && (joins >> next & 1U) != 0 &&
                                                         slow_[order[next]][running[0]] < 1e100))) {
        running.push_back(order[next++]);
      }
      auto speed = [&](std::size_t job) {
        return running.size() == 2 ? 1 / slow_[job][job == running[0] ? running[1] : running[0]] : 1.0;
      };
      std::size_t first = running[0];
      for (const std::size_t job : running) {
        first = left[job] / speed(job) < left[first] / speed(first) ? job : first;
      }
      const double time = left[first] / speed(first);
      for (const std::size_t job : running) {
        left[job] -= time * speed(job);
      }
      now += time;
      sum += now;
      std::erase(running, first);
    }
    return sum / static_cast<double>(order.size());
  }

  std::vector<double> alone_;
  std::vector<std::vector<double>> slow_;
};

TEST(QueuePlanner, IsAsGoodAsTryingEverything) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> seconds(1, 100);
  std::uniform_real_distribution<double> ratio(1, 2.5);
  for (int round = 0; round < 400; ++round) {
    const std::size_t n = 2 + round % 4;
    std::vector<PlannedJob> jobs;
    std::vector<double> alone;
    std::vector<std::vector<double>> slow(n, std::vector<double>(n, 1e200));
    std::vector<QueuedPair> pairs;
    for (std::size_t i = 0; i < n; ++i) {
      alone.push_back(seconds(random));
      jobs.push_back(job(std::string(1, static_cast<char>('a' + i)), alone[i]));
      for (std::size_t k = 0; k < i; ++k) {
        if (round % 7 != 0 || i + k != 1) {  // sometimes a pair that cannot share
          slow[i][k] = ratio(random);
          slow[k][i] = ratio(random);
          pairs.push_back({i, k, {slow[i][k]}, {slow[k][i]}});
        }
      }
    }
    const QueuePlan plan = plan_queue(jobs, pairs, {});
    EXPECT_TRUE(plan.exact);
    EXPECT_NEAR(plan.average(), Reference(alone, slow).least_average(), 1e-9 * plan.average()) << "round " << round;
  }
}

TEST(QueuePlanner, PairsJobsThatShareWellAndRunsTheOthersShortestFirst) {
  const std::vector<PlannedJob> jobs{job("a", 100), job("b", 100), job("c", 10)};
  const QueuePlan plan = plan_queue(jobs, {{0, 1, {1.0}, {1.0}}, {0, 2, {3}, {3}}, {1, 2, {3}, {3}}}, {});
  EXPECT_THAT(plan.ends, ElementsAre(110, 110, 10));
  ASSERT_EQ(plan.pieces.size(), 3U);
  EXPECT_EQ(plan.pieces[0].job, 2U);
  EXPECT_EQ(plan.pieces[1].partner, 1U);
}

TEST(QueuePlanner, SplitsAPairThatDoesNotFitWhole) {
  std::vector<PlannedJob> jobs{job("a", 100), job("b", 100)};
  for (PlannedJob& each : jobs) {
    each.batch = 8;
    each.memory = {.fixed = 1, .per_row = 1};
    each.ratios = {1, 1};
  }
  const std::vector<QueuedPair> pairs{{0, 1, {1.1, 1.2}, {1.1, 1.2}}};
  EXPECT_EQ(plan_queue(jobs, pairs, {.memory = 18}).pieces[0].sub_batches, 1);
  const QueuePlan split = plan_queue(jobs, pairs, {.memory = 14});
  EXPECT_EQ(split.pieces[0].sub_batches + split.pieces[1].sub_batches, 3);
  EXPECT_FALSE(plan_queue(jobs, pairs, {.memory = 9}).pieces[0].partner.has_value());
  EXPECT_THAT([&] { plan_queue(jobs, pairs, {.memory = 4}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("job 'a' needs 5 bytes alone in 2 sub-batches")));
}

TEST(QueuePlanner, SaysWhenItsSearchWasCutShort) {
  std::vector<PlannedJob> jobs;
  std::vector<QueuedPair> pairs;
  for (std::size_t i = 0; i < 12; ++i) {
    jobs.push_back(job(std::string(1, static_cast<char>('a' + i)), 10.0 + static_cast<double>(i)));
    for (std::size_t k = 0; k < i; ++k) {
      pairs.push_back({i, k, {1.3}, {1.3}});
    }
  }
  const QueuePlan plan = plan_queue(jobs, pairs, {.max_nodes = 10'000});
  EXPECT_FALSE(plan.exact);
  EXPECT_EQ(plan.ends.size(), 12U);
  double one_by_one = 0;
  double now = 0;
  for (const PlannedJob& each : jobs) {
    one_by_one += now += each.remaining_steps;
  }
  EXPECT_LT(plan.average(), one_by_one / 12);
}

TEST(QueuePlanner, RefusesPairsOfUnknownJobs) {
  EXPECT_THAT([] { plan_queue({job("a", 1)}, {{0, 1, {1}, {1}}}, {}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("a pair must name two of the")));
  EXPECT_THAT(
      [] { plan_queue({job("a", -1)}, {}, {}); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("job 'a': remaining_steps must be a finite number >= 0, got -1")));
  EXPECT_TRUE(plan_queue({}, {}, {}).ends.empty());
}

}  // namespace
}  // namespace torchshare
