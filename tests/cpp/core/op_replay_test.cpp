#include "planner/op_replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace torchshare {
namespace {

using namespace std::chrono_literals;

constexpr double kMs = 1e6;

/// Steps of two ops: `gap` (of which `idle` for input) before the first, 10 us before the second.
ReplayJob job(Priority priority, int steps, double gap, double idle, double duration, int threads = 1) {
  ReplayJob made{.priority = priority, .threads = threads};
  for (int i = 0; i < steps; ++i) {
    made.trace.ops.push_back({.context = 1, .gap = gap, .idle = idle, .duration = duration});
    made.trace.ops.push_back({.context = 2, .gap = 1e4, .idle = 0, .duration = duration});
    made.trace.step_ends.push_back(made.trace.ops.size());
  }
  return made;
}

std::vector<Replayed> replay(std::vector<ReplayJob> jobs, std::string_view policy,
                             ReplayOptions options = {.cores = 2}) {
  return OpReplay(std::move(jobs), make_gate_policy(policy, {.grace = 200us}), options).run();
}

double step_of(const Replayed& done) {
  return (done.step_ends.back() - done.step_ends.front()) / static_cast<double>(done.step_ends.size() - 1);
}

constexpr auto kFirst = Priority::kPrimary;
constexpr auto kSecond = Priority::kSecondary;

TEST(OpReplay, AJobAloneTakesAsLongAsItsTrace) {
  for (const std::string_view policy : gate_policy_names()) {
    const auto done = replay({job(kFirst, 10, 5 * kMs, 4 * kMs, kMs)}, policy);
    EXPECT_EQ(done[0].ops, 20U);
    EXPECT_NEAR(step_of(done[0]), 7.01 * kMs, 1);
  }
}

TEST(OpReplay, SharesCoresEvenlyOrByPriority) {
  const auto both = [](bool device_priority) {
    return replay({job(kFirst, 50, 0, 0, kMs, 2), job(kSecond, 50, 0, 0, kMs, 2)}, "priority",
                  {.cores = 2, .device_priority = device_priority});
  };
  EXPECT_NEAR(step_of(both(false)[0]) / (2.01 * kMs), 2, 0.02);
  EXPECT_NEAR(step_of(both(true)[0]) / (2.01 * kMs), 1, 0.02);
  EXPECT_LT(both(true)[1].ops, 5U);
}

TEST(OpReplay, OnlyOneComputesInPythonAtATime) {
  const auto done = replay({job(kFirst, 50, kMs, 0, 1e3), job(kSecond, 50, kMs, 0, 1e3)}, "priority");
  EXPECT_NEAR(step_of(done[0]) / (1.012 * kMs), 2, 0.05);
}

TEST(OpReplay, ALongPythonGapIsInterruptedAfterTheSwitchInterval) {
  const auto done = replay({job(kFirst, 20, 40 * kMs, 0, kMs), job(kSecond, 1000, 0.1 * kMs, 0, kMs)}, "priority");
  EXPECT_GT(done[1].ops, 20U);
}

TEST(OpReplay, TheStrictGateKeepsTheSecondaryOutOfABusyPrimary) {
  const auto done = replay({job(kFirst, 100, 1e4, 0, kMs), job(kSecond, 100, 1e4, 0, kMs)}, "strict");
  EXPECT_LE(done[1].ops, 1U);
  EXPECT_NEAR(step_of(done[0]) / (2.02 * kMs), 1, 0.01);
}

TEST(OpReplay, BestFitEndsItsFillingBeforeTheGapDoes) {
  // On one core without device priority: an op still in the gap at its end delays the primary.
  const std::vector<ReplayJob> jobs{job(kFirst, 100, 10 * kMs, 10 * kMs, kMs), job(kSecond, 100, 1e4, 0, 1.9 * kMs)};
  const ReplayOptions one_core{.cores = 1, .device_priority = false};
  const auto strict = replay(jobs, "strict", one_core);
  const auto best_fit = replay(jobs, "best_fit", one_core);
  const double alone = 12.01 * kMs;
  EXPECT_GT(step_of(strict[0]), 1.05 * alone);
  EXPECT_LT(step_of(best_fit[0]), 1.005 * alone);
  EXPECT_GT(static_cast<double>(best_fit[1].ops), 0.7 * static_cast<double>(strict[1].ops));
}

TEST(OpReplay, BestFitEntersGapsThatAreShorterThanTheGrace) {
  const std::vector<ReplayJob> jobs{job(kFirst, 100, 0.17 * kMs, 0, kMs), job(kSecond, 100, 1e3, 0, 0.05 * kMs)};
  EXPECT_LT(replay(jobs, "strict")[1].ops, 5U);
  EXPECT_GT(replay(jobs, "best_fit")[1].ops,
            90U);  // one per gap: the next one needs the GIL, which the primary holds
}

/// The contract of every gate policy in a replay, alone and wrapped.
class EveryReplayedPolicy : public ::testing::TestWithParam<std::string_view> {
 protected:
  static std::vector<Replayed> replay_with(const GatePolicyOptions& gate, std::vector<ReplayJob> jobs) {
    return OpReplay(std::move(jobs), make_gate_policy(GetParam(), gate), {.cores = 2}).run();
  }
};

TEST_P(EveryReplayedPolicy, RunsThePrimaryAtItsSpeedAndTheSecondaryInItsGaps) {
  const std::vector<ReplayJob> jobs{job(kFirst, 50, 10 * kMs, 10 * kMs, kMs), job(kSecond, 50, 1e4, 0, 0.2 * kMs)};
  const std::vector<GatePolicyOptions> wrapped{
      {}, {.max_wait = 100ms}, {.run_ahead = 500us}, {.max_wait = 100ms, .run_ahead = 500us}};
  for (const GatePolicyOptions& gate : wrapped) {
    const auto done = replay_with(gate, jobs);
    EXPECT_NEAR(step_of(done[0]) / (12.01 * kMs), 1, 0.01);
    EXPECT_GT(done[1].ops, 500U);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryReplayedPolicy, ::testing::ValuesIn(gate_policy_names()),
                         [](const auto& info) { return std::string(info.param); });

TEST(OpReplay, TheResourcePolicyFillsOpsOfTheOtherKind) {
  std::vector<ReplayJob> jobs{job(kFirst, 100, 1e4, 0, kMs), job(kSecond, 100, 1e4, 0, 0.1 * kMs)};
  for (OpTrace::Op& op : jobs[0].trace.ops) {
    op.kind = OpKind::kCompute;
  }
  for (OpTrace::Op& op : jobs[1].trace.ops) {
    op.kind = OpKind::kMemory;
  }
  EXPECT_LT(replay(jobs, "best_fit")[1].ops, 5U);
  EXPECT_GT(replay(jobs, "resource")[1].ops, 500U);
}

TEST(OpReplay, MaxWaitEndsTheWaitBesideABusyPrimary) {
  const std::vector<ReplayJob> jobs{job(kFirst, 100, 1e4, 0, kMs), job(kSecond, 100, 1e4, 0, kMs)};
  const GatePolicyOptions gate{.grace = 200us, .max_wait = 5ms};
  const auto done = OpReplay(jobs, make_gate_policy("strict", gate), {.cores = 2}).run();
  EXPECT_NEAR(static_cast<double>(done[1].ops), 202 / 6.0, 4);
}

TEST(OpReplay, RefusesInvalidJobs) {
  EXPECT_THROW(replay({}, "strict"), std::invalid_argument);
  EXPECT_THROW(replay({ReplayJob{}}, "strict"), std::invalid_argument);
  EXPECT_THROW(replay({job(kFirst, 1, 0, 0, 1)}, "strict", {.cores = 0}), std::invalid_argument);
}

}  // namespace
}  // namespace torchshare
