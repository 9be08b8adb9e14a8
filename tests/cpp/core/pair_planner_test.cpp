#include "planner/pair_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

namespace torchshare {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Simulates two jobs from event to event; the planner's closed form must agree.
struct Stepped {
  double new_ends = 0;
  double running_ends = 0;
  double average() const { return (new_ends + running_ends) / 2; }
};

Stepped stepped(double new_alone, double new_slowdown, double running_alone, double running_slowdown, double start) {
  constexpr double kDone = 1e-12;
  double now = 0;
  double new_left = new_alone;
  double running_left = running_alone;
  Stepped ends;
  while (new_left > kDone || running_left > kDone) {
    const bool new_runs = now >= start && new_left > kDone;
    const bool running_runs = running_left > kDone;
    const bool both = new_runs && running_runs;
    const double new_pace = new_runs ? (both ? 1 / new_slowdown : 1) : 0;
    const double running_pace = running_runs ? (both ? 1 / running_slowdown : 1) : 0;
    double step = now < start ? start - now : std::numeric_limits<double>::infinity();
    step = new_runs ? std::min(step, new_left / new_pace) : step;
    step = running_runs ? std::min(step, running_left / running_pace) : step;
    now += step;
    new_left -= step * new_pace;
    running_left -= step * running_pace;
    ends.new_ends = new_runs ? now : ends.new_ends;
    ends.running_ends = running_runs ? now : ends.running_ends;
  }
  return ends;
}

constexpr int kLargestSplit = 4;  // three ratios: 1, 2 and 4 sub-batches

struct PlannedCase {
  PlannedJob new_job;
  PlannedJob running;
  PlanOptions options;
};

PlannedCase random_case(std::mt19937_64& random) {
  const auto between = [&](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
  const auto job = [&](std::string name) {
    PlannedJob made{.name = std::move(name), .remaining_steps = std::floor(between(1, 2000)), .batch = 64};
    made.time = {.alpha = between(0, 0.02),
                 .beta = between(1e-4, 1e-3),
                 .communication = between(0, 0.02),
                 .delta = between(1, 3)};
    made.memory = {.fixed = between(0, 4), .per_row = between(0.01, 0.1)};
    made.ratios = {between(1, 2.2), between(1, 2.2), between(1, 2.2)};
    return made;
  };
  PlannedCase made{job("new"), job("running"), {}};
  if (random() % 2 == 0) {
    made.options.max_slowdown = between(0, 0.6);
  }
  if (random() % 2 == 0) {
    const double end = made.running.alone(0);
    made.options.memory = {{0, between(6, 14)}};
    made.options.memory.push_back({between(0.05, 0.95) * end, made.options.memory[0].bytes + between(0, 4)});
    made.options.memory.push_back({2 * end, 100});
  }
  made.options.suspend_cost = random() % 2 == 0 ? 0 : between(0, 5);
  for (PlannedJob* const planned : {&made.new_job, &made.running}) {
    if (random() % 2 == 0) {
      planned->deadline = between(-0.1, 2.5) * (made.new_job.alone(0) + made.running.alone(0));
    }
  }
  return made;
}

double memory_at(const PlanOptions& options, double when) {
  double bytes = options.memory.empty() ? std::numeric_limits<double>::infinity() : 0;
  for (const MemoryFrom& step : options.memory) {
    bytes = step.from <= when ? step.bytes : bytes;
  }
  return bytes;
}

/// Sub-batches and time of a job alone, with the initial memory.
std::pair<int, double> alone(const PlannedJob& job, const PlanOptions& options) {
  int pieces = 1;
  while (job.memory.peak(job.batch, pieces) > memory_at(options, 0)) {
    pieces *= 2;
  }
  return {pieces, job.remaining_steps * job.time.step(job.batch, pieces)};
}

double slowdown(const PlannedJob& job, const PlanOptions& options, int pieces) {
  const double ratio = job.ratios[static_cast<std::size_t>(std::log2(pieces))];
  return ratio * job.time.step(job.batch, pieces) * job.remaining_steps / alone(job, options).second;
}

PlanCost cost(const PlannedCase& in, double new_ends, double running_ends) {
  const auto late = [](double ends, const PlannedJob& job) {
    return job.deadline ? std::max(0.0, ends - *job.deadline) : 0.0;
  };
  return {late(new_ends, in.new_job) + late(running_ends, in.running), (new_ends + running_ends) / 2};
}

/// The least cost over a grid of starts, every split and either order.
PlanCost best_on_a_grid(const PlannedCase& in) {
  const auto [a_pieces, a] = alone(in.new_job, in.options);
  const auto [b_pieces, b] = alone(in.running, in.options);
  const double bound =
      in.options.max_slowdown ? (1 + *in.options.max_slowdown) * b : std::numeric_limits<double>::infinity();
  PlanCost best = cost(in, b + a, b);
  const auto keep = [&](const PlanCost& other) { best = other.is_better_than(best) ? other : best; };
  if (a + in.options.suspend_cost + b <= bound) {
    keep(cost(in, a, a + in.options.suspend_cost + b));
  }
  for (int i = 0; i < 60; ++i) {
    const double start = b * i / 60;
    for (int p = a_pieces; p <= kLargestSplit; p *= 2) {
      for (int q = b_pieces; q <= kLargestSplit; q *= 2) {
        const double need = in.new_job.memory.peak(in.new_job.batch, p) + in.running.memory.peak(in.running.batch, q);
        if (need <= memory_at(in.options, start)) {
          const Stepped ends =
              stepped(a, slowdown(in.new_job, in.options, p), b, slowdown(in.running, in.options, q), start);
          if (ends.running_ends <= bound) {
            keep(cost(in, ends.new_ends, ends.running_ends));
          }
        }
      }
    }
  }
  return best;
}

TEST(PairPlanner, IsNeverAboveTheBestOnAGridInTenThousandCases) {
  std::mt19937_64 random(20240713);
  int interior = 0;
  int split = 0;
  int delayed = 0;
  int late = 0;
  for (int i = 0; i < 10'000; ++i) {
    const PlannedCase in = random_case(random);
    const Plan plan = plan_pair(in.new_job, in.running, in.options);
    const PlanCost best = best_on_a_grid(in);
    const double tolerance = 1e-9 * best.average;
    ASSERT_LE(plan.late, best.late + tolerance) << "case " << i;
    if (plan.late >= best.late - tolerance) {
      ASSERT_LE(plan.average(), best.average + tolerance) << "case " << i;
    }
    PlannedCase free = in;
    free.new_job.deadline = free.running.deadline = {};
    delayed += plan.late == 0 && plan.average() > plan_pair(free.new_job, free.running, free.options).average() ? 1 : 0;
    late += plan.late > 0 ? 1 : 0;
    interior += plan.start == PlannedStart::kAtStep ? 1 : 0;
    split += plan.new_sub_batches > 1 || plan.running_sub_batches > 1 ? 1 : 0;
  }
  EXPECT_GT(interior, 100) << "bounds and memory make starts in between the best";
  EXPECT_GT(split, 100);
  EXPECT_GT(delayed, 100) << "deadlines that are kept cost something";
  EXPECT_GT(late, 100) << "and some cannot be kept";
}

TEST(PairPlanner, PredictsWhatSteppingThroughItsPlanGives) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 1'000; ++i) {
    const PlannedCase in = random_case(random);
    const Plan plan = plan_pair(in.new_job, in.running, in.options);
    if (plan.start == PlannedStart::kFirst) {
      continue;
    }
    const double running_alone = alone(in.running, in.options).second;
    const Stepped ends =
        stepped(alone(in.new_job, in.options).second, slowdown(in.new_job, in.options, plan.new_sub_batches),
                running_alone, slowdown(in.running, in.options, plan.running_sub_batches), plan.start_in);
    EXPECT_NEAR(plan.new_ends, ends.new_ends, 1e-9 * ends.new_ends);
    EXPECT_NEAR(plan.running_ends, ends.running_ends, 1e-9 * ends.running_ends);
    if (in.options.max_slowdown) {
      EXPECT_LE(ends.running_ends, (1 + *in.options.max_slowdown) * running_alone * (1 + 1e-9));
    }
  }
}

/// A job of `seconds` steps of one second each.
PlannedJob job(std::string name, double seconds, double ratio, double memory = 0) {
  return {.name = std::move(name),
          .remaining_steps = seconds,
          .time = {.alpha = 1},
          .memory = {.fixed = memory},
          .ratios = {ratio}};
}

TEST(PairPlanner, SharesNowUpToARatioOfOneAndAHalf) {
  EXPECT_EQ(plan_pair(job("a", 100, 1.4), job("b", 100, 1.4), {}).start, PlannedStart::kNow);
  EXPECT_EQ(plan_pair(job("a", 100, 1.6), job("b", 100, 1.6), {}).start, PlannedStart::kAfter);
  EXPECT_EQ(plan_pair(job("a", 10, 1.6), job("b", 100, 1.6), {}).start, PlannedStart::kFirst);
  EXPECT_EQ(plan_pair(job("a", 10, 1.6), job("b", 100, 1.6), {.suspend_cost = 1000}).start, PlannedStart::kNow);
}

TEST(PairPlanner, ABoundDelaysTheStart) {
  const Plan plan = plan_pair(job("a", 1000, 1.2), job("b", 100, 1.2), {.max_slowdown = 0.05});
  EXPECT_EQ(plan.start, PlannedStart::kAtStep);
  EXPECT_DOUBLE_EQ(plan.at_step, 75);  // 25 of its seconds take 30
  EXPECT_DOUBLE_EQ(plan.running_ends, 105);
  EXPECT_THAT(plan.reasons, Contains(HasSubstr("beyond the bound")));
}

TEST(PairPlanner, ADeadlineOfTheRunningJobDelaysTheStart) {
  PlannedJob running = job("b", 100, 1.2);
  running.deadline = 105;
  const Plan plan = plan_pair(job("a", 1000, 1.2), running, {});
  EXPECT_EQ(plan.start, PlannedStart::kAtStep);
  EXPECT_DOUBLE_EQ(plan.at_step, 75);  // 25 of its seconds take 30
  EXPECT_DOUBLE_EQ(plan.running_ends, 105);
  EXPECT_EQ(plan.late, 0);
  running.deadline = 99;
  const Plan late = plan_pair(job("a", 1000, 1.2), running, {});
  EXPECT_EQ(late.start, PlannedStart::kAfter);
  EXPECT_DOUBLE_EQ(late.late, 1);
  EXPECT_THAT(late.reasons, Contains(HasSubstr("average 600 s, 1 s late")));
}

TEST(PairPlanner, ADeadlineOfTheNewJobBringsItsStartForward) {
  // Without deadlines, 'a' waits: sharing would end them at 160 s.
  PlannedJob a = job("a", 100, 1.6);
  a.deadline = 170;
  const Plan together = plan_pair(a, job("b", 100, 1.6), {.suspend_cost = 20});
  EXPECT_EQ(together.start, PlannedStart::kAtStep);
  EXPECT_NEAR(together.new_ends, 170, 1e-9);
  EXPECT_NEAR(together.start_in, 25, 1e-9);  // 75 s of 'b' take 120, in which 'a' does 75; the other 25 end at 170
  a.deadline = 110;
  EXPECT_EQ(plan_pair(a, job("b", 100, 1.6), {}).start, PlannedStart::kFirst);
}

TEST(PairPlanner, MemoryThatBecomesFreeDelaysTheStart) {
  const Plan plan = plan_pair(job("a", 100, 1.1, 6), job("b", 100, 1.1, 6), {.memory = {{0, 10}, {40, 12}}});
  EXPECT_EQ(plan.start, PlannedStart::kAtStep);
  EXPECT_DOUBLE_EQ(plan.start_in, 40);
}

TEST(PairPlanner, SplitsTheBatchesThatDoNotFitTogether) {
  PlannedJob a = job("a", 100, 1);
  a.batch = 64;
  a.memory = {.fixed = 1, .per_row = 0.1};
  a.time = {.alpha = 0.01, .beta = 0.01};
  a.ratios = {1.1, 1.1, 1.1};
  const Plan plan = plan_pair(a, job("b", 100, 1.1, 6), {.memory = {{0, 9}}});
  EXPECT_EQ(plan.start, PlannedStart::kNow);
  EXPECT_EQ(plan.new_sub_batches, 4);  // 1 + 6.4 / 4 is 2.6; halves would need 4.2
}

TEST(PairPlanner, HandlesNoRemainingWork) {
  EXPECT_DOUBLE_EQ(plan_pair(job("a", 0, 1.2), job("b", 100, 1.2), {}).average(), 50);
  EXPECT_DOUBLE_EQ(plan_pair(job("a", 10, 1.2), job("b", 0, 1.2), {}).average(), 5);
}

TEST(PairPlanner, RefusesInvalidNumbers) {
  using E = std::invalid_argument;
  const auto refusal = [](auto change) {
    return [change] {
      PlannedJob a = job("a", 10, 1.2);
      PlanOptions options;
      change(a, options);
      plan_pair(a, job("b", 10, 1.2), options);
    };
  };
  const double nan = std::nan("");
  EXPECT_THAT(refusal([](auto& a, auto&) { a.ratios = {0.9}; }),
              ThrowsMessage<E>(HasSubstr("'a': interference ratio must be a finite number >= 1, got 0.9")));
  EXPECT_THAT(refusal([](auto& a, auto&) { a.ratios = {}; }),
              ThrowsMessage<E>(HasSubstr("'a' must have an interference ratio per split")));
  EXPECT_THAT(refusal([=](auto& a, auto&) { a.time.alpha = nan; }),
              ThrowsMessage<E>(HasSubstr("'a': alpha must be a finite number >= 0, got nan")));
  EXPECT_THAT(refusal([](auto& a, auto&) { a.time.alpha = 0; }), ThrowsMessage<E>(HasSubstr("'a': step time must be")));
  EXPECT_THAT(refusal([=](auto& a, auto&) { a.deadline = nan; }),
              ThrowsMessage<E>(HasSubstr("'a': deadline must be a finite number, got nan")));
  EXPECT_THAT(refusal([](auto& a, auto&) { a.remaining_steps = -1; }),
              ThrowsMessage<E>(HasSubstr("remaining_steps must be a finite number >= 0, got -1")));
  EXPECT_THAT(
      refusal([](auto&, auto& o) { o.max_slowdown = -0.1; }),
      ThrowsMessage<E>(HasSubstr("max_slowdown of job 'b' must be from 0 to 1, such as 0.05 for 5 %, got -0.1")));
  EXPECT_THAT(refusal([](auto&, auto& o) { o.memory = {{0, 5}, {1, 4}}; }),
              ThrowsMessage<E>(HasSubstr("memory steps must begin at 0 s and ascend")));
  EXPECT_THAT(refusal([](auto& a, auto& o) {
                a.memory.fixed = 9;
                o.memory = {{0, 5}};
              }),
              ThrowsMessage<E>(HasSubstr("'a' needs 9 bytes alone in 1 sub-batches, the device has 5")));
}

TEST(StepTimeModel, AddsUpItsPieces) {
  const StepTimeModel alone{.alpha = 0.01, .beta = 0.001};
  EXPECT_DOUBLE_EQ(alone.step(100, 1), 0.11);
  EXPECT_DOUBLE_EQ(alone.step(100, 4), 0.14);
  StepTimeModel ranks{.alpha = 0.01, .beta = 0.001, .communication = 0.05};
  EXPECT_DOUBLE_EQ(ranks.step(100, 2), 0.06 + 0.06 + 0.05) << "delta 1: communication after computation";
  ranks.delta = 200;
  EXPECT_NEAR(ranks.step(100, 2), 0.06 + 0.06, 1e-3) << "a large delta: the shorter hides behind the longer";
}

TEST(PairPlanner, UsesMeasurementsIfThereAreAny) {
  PlannedJob job;
  job.name = "a";
  job.remaining_steps = 10;
  job.batch = 8;
  job.time = {.alpha = 1, .beta = 1};
  job.memory = {.fixed = 1, .per_row = 1};
  job.ratios = {1, 1, 1};
  job.measured = {{.step = 2, .bytes = 100}, {.step = 3, .bytes = 50}};
  EXPECT_EQ(job.alone(0), 20);
  EXPECT_EQ(job.alone(1), 30);
  EXPECT_EQ(job.alone(2), 10 * job.time.step(8, 4));
  EXPECT_EQ(split_alone(job, 60), 1U);
  EXPECT_EQ(split_alone(job, 4), 2U);
}

}  // namespace
}  // namespace torchshare
