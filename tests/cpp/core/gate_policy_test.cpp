#include "policy/gate_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr auto kGrace = 200us;
constexpr Competitor kInside{.inside = true, .idle = false, .quiet = 0ns};
constexpr Competitor kJustLeft{.inside = false, .idle = false, .quiet = 50us};
constexpr Competitor kQuiet{.inside = false, .idle = false, .quiet = 200us};
constexpr Competitor kWaitsForInput{.inside = false, .idle = true, .quiet = 0ns};

/// The contract of every gate policy.
class EveryGatePolicy : public ::testing::TestWithParam<std::string_view> {
 protected:
  std::unique_ptr<GatePolicy> policy_ = make_gate_policy(GetParam(), {.grace = kGrace});
};

TEST_P(EveryGatePolicy, NeverHoldsTheHighestJobForALowerOne) {
  EXPECT_FALSE(policy_->concerns(Priority::kPrimary, Priority::kSecondary));
}

TEST_P(EveryGatePolicy, AdmitsWithoutCompetitors) {
  EXPECT_TRUE(policy_->decide({}, {}).admit);
}

TEST_P(EveryGatePolicy, SaysWhenToAskAgainIfItRefuses) {
  for (const Competitor& competitor : {kInside, kJustLeft, kQuiet, kWaitsForInput}) {
    const Verdict verdict = policy_->decide({}, std::array{competitor});
    EXPECT_TRUE(verdict.admit || verdict.retry_after > 0ns);
    EXPECT_LT(verdict.retry_after, 1s + 1ns);
  }
}

TEST_P(EveryGatePolicy, DoesNotWaitForAnEqualJobInsideAnOp) {
  constexpr Competitor kEqual{.priority = Priority::kSecondary, .inside = true};
  EXPECT_TRUE(policy_->decide({.priority = Priority::kSecondary}, std::array{kEqual}).admit);
}

TEST_P(EveryGatePolicy, AJobWithoutOthersIsNotHeldByAPeriodOfItsOwn) {
  EXPECT_TRUE(policy_->decide({.unit = {.due = 1ms}}, {}).admit);
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryGatePolicy, ::testing::ValuesIn(gate_policy_names()),
                         [](const auto& info) { return std::string(info.param); });

TEST(PriorityOnlyPolicy, NeverMakesAJobWait) {
  const auto policy = make_gate_policy("priority", {});
  EXPECT_FALSE(policy->concerns(Priority::kLowest, Priority::kPrimary));
}

TEST(StrictPolicy, KeepsLowerJobsOutWhileAHigherOneIsInsideOrJustLeft) {
  const auto policy = make_gate_policy("strict", {.grace = kGrace});
  EXPECT_TRUE(policy->concerns(Priority::kSecondary, Priority::kPrimary));
  EXPECT_FALSE(policy->concerns(Priority::kSecondary, Priority::kSecondary));
  EXPECT_FALSE(policy->decide({}, std::array{kQuiet, kInside}).admit);
  EXPECT_FALSE(policy->decide({}, std::array{kJustLeft}).admit);
  EXPECT_EQ(policy->decide({}, std::array{kJustLeft}).retry_after, 150us);
  EXPECT_EQ(policy->decide({}, std::array{kJustLeft, kInside}).retry_after, kGrace);
  EXPECT_EQ(make_gate_policy("strict", {.grace = 0ns})->decide({}, std::array{kInside}).retry_after, 50us);
}

TEST(StrictPolicy, KeepsLowerJobsOutOfARequestUnlessItWaitsForSomethingElse) {
  const auto policy = make_gate_policy("strict", {.grace = kGrace});
  EXPECT_FALSE(policy->decide({}, std::array{Competitor{.answering = true, .quiet = 10ms}}).admit);
  EXPECT_TRUE(policy->decide({}, std::array{Competitor{.answering = true, .quiet = 100ms}}).admit);
  EXPECT_TRUE(policy->decide({}, std::array{Competitor{.idle = true, .answering = true}}).admit);
  const Requester higher{.priority = Priority::kPrimary};
  EXPECT_TRUE(
      policy->decide(higher, std::array{Competitor{.priority = Priority::kSecondary, .answering = true}}).admit);
}

TEST(StrictPolicy, AdmitsAfterTheGraceOrOnAnIdleHint) {
  const auto policy = make_gate_policy("strict", {.grace = kGrace});
  EXPECT_TRUE(policy->decide({}, std::array{kQuiet}).admit);
  EXPECT_TRUE(policy->decide({}, std::array{kWaitsForInput}).admit);
}

class Edf : public ::testing::Test {
 protected:
  Verdict ask(const Requester& requester, const std::vector<Competitor>& competitors) {
    return policy_->decide(requester, competitors);
  }
  bool admits(const Requester& requester, const std::vector<Competitor>& competitors) {
    return ask(requester, competitors).admit;
  }
  std::unique_ptr<GatePolicy> policy_ = make_gate_policy("edf", {});
};

constexpr Competitor kOutsideUnit{.until_release = 5ms};

TEST_F(Edf, OnlyAPeriodicJobIsWaitedFor) {
  constexpr auto kAny = Priority::kSecondary;
  EXPECT_TRUE(policy_->concerns(Standing(kAny), Standing(kAny, true)));
  EXPECT_TRUE(policy_->concerns(Standing(kAny, true), Standing(kAny, true)));
  EXPECT_FALSE(policy_->concerns(Standing(kAny, true), Standing(Priority::kPrimary)));
  EXPECT_TRUE(policy_->regards(Standing(Priority::kPrimary), Standing(Priority::kLowest)));
}

TEST_F(Edf, TheEarliestDeadlineEntersAndOfEqualOnesTheFirstJob) {
  const Requester requester{.unit = {.due = 10ms, .job = 2}};
  EXPECT_FALSE(admits(requester, {{.unit = {.due = 9ms, .job = 3}}}));
  EXPECT_FALSE(admits(requester, {{.unit = {.due = -1ms, .job = 3}}}));  // already late
  EXPECT_FALSE(admits(requester, {{.unit = {.due = 10ms, .job = 1}}}));
  EXPECT_TRUE(admits(requester, {{.unit = {.due = 10ms, .job = 3}}}));
  EXPECT_TRUE(admits(requester, {{.unit = {.due = 11ms, .job = 1}}}));
}

TEST_F(Edf, AUnitWaitsForTheEndOfAnotherPeriodicJobsOpOnly) {
  const Requester requester{.unit = {.due = 10ms}};
  EXPECT_FALSE(admits(requester, {{.inside = true, .unit = {.due = 20ms}}}));
  EXPECT_TRUE(admits(requester, {{.inside = true, .left = 1s}}));
  EXPECT_TRUE(admits(requester, {{.until_release = 1us}}));
}

TEST_F(Edf, AUnitKeepsOthersOutBetweenItsOpsUnlessItWaitsForSomethingElse) {
  EXPECT_FALSE(admits({.op = 1us}, {{.quiet = 99ms, .unit = {.due = 1s}}}));
  EXPECT_TRUE(admits({.op = 1us}, {{.quiet = 100ms, .unit = {.due = 1s}}}));
  EXPECT_FALSE(admits({.op = 1us}, {{.quiet = 1s, .waits = true, .unit = {.due = 1s}}}));
}

TEST_F(Edf, AUnitThatIsVeryLateIsWorkWithoutADeadline) {
  EXPECT_FALSE(admits({.op = 1us}, {{.inside = true, .unit = {.due = -99ms}}}));
  EXPECT_TRUE(admits({.op = 1us}, {{.inside = true, .unit = {.due = -100ms}}}));
  const Requester late{.op = 2ms, .unit = {.due = -100ms}};
  EXPECT_FALSE(admits(late, {{.unit = {.due = 1s}}}));
  EXPECT_FALSE(admits(late, {{.until_release = 1ms}}));
  EXPECT_TRUE(admits(late, {{.until_release = 2ms}}));
}

TEST_F(Edf, AnOpEntersIfItEndsBeforeTheNextRelease) {
  EXPECT_TRUE(admits({.op = 5ms}, {kOutsideUnit}));
  EXPECT_FALSE(admits({.op = 5001us}, {kOutsideUnit}));
  EXPECT_FALSE(admits({.op = 1us}, {{.until_release = -99ms}}));  // it has not begun, but may at any time
  EXPECT_TRUE(admits({.op = 1s}, {{.until_release = -100ms}}));
  EXPECT_FALSE(admits({.op = 5ms}, {kOutsideUnit, {.until_release = 4ms}}));
}

TEST_F(Edf, OpsThatWereAdmittedTogetherUseTheRoomOneAfterTheOther) {
  const Competitor beside{.inside = true, .left = 3ms};
  const Verdict verdict = ask({.op = 2ms}, {kOutsideUnit, beside});
  EXPECT_TRUE(verdict.admit);
  EXPECT_EQ(verdict.backlog, 3ms);
  EXPECT_FALSE(admits({.op = 2001us}, {kOutsideUnit, beside}));
  EXPECT_FALSE(admits({.op = 2ms, .left = 4ms}, {kOutsideUnit, beside}));  // its last op ended early
  EXPECT_TRUE(admits({.op = 2ms, .left = 4ms}, {kOutsideUnit}));           // nothing runs: all ended early
}

TEST_F(Edf, AnOpOfUnknownDurationNeedsTenMillisecondsOrATimeOfWaiting) {
  EXPECT_TRUE(admits({}, {{.until_release = 10ms}}));
  EXPECT_FALSE(admits({}, {{.until_release = 9ms}}));
  EXPECT_TRUE(admits({.waited = 100ms}, {{.until_release = 9ms}}));
  EXPECT_FALSE(admits({.waited = 100ms}, {{.unit = {.due = 1s}}}));
}

constexpr Requester kLow{.priority = Priority::kSecondary, .op = 1ms};

/// A job that left its last op `quiet` ago and is expected back after `mean`.
Competitor in_gap(std::chrono::nanoseconds quiet, std::chrono::nanoseconds mean, std::chrono::nanoseconds spread) {
  return {.quiet = quiet, .gap = {.mean = mean, .spread = spread}};
}

Competitor waiting(int level, std::chrono::nanoseconds op) {
  return {.priority = static_cast<Priority>(level), .quiet = 1s, .waits = true, .op = op};
}

class BestFit : public ::testing::Test {
 protected:
  bool admits(const Requester& requester, const std::vector<Competitor>& competitors) {
    return policy_->decide(requester, competitors).admit;
  }
  std::unique_ptr<GatePolicy> policy_ = make_gate_policy("best_fit", {.grace = kGrace});
};

TEST_F(BestFit, FillsAGapWithOpsThatEndBeforeItsMeanLessItsSpread) {
  EXPECT_TRUE(admits(kLow, {in_gap(0ns, 2ms, 100us)}));
  EXPECT_TRUE(admits(kLow, {in_gap(900us, 2ms, 100us)}));
  EXPECT_FALSE(admits(kLow, {in_gap(901us, 2ms, 100us)}));
  EXPECT_FALSE(admits(kLow, {in_gap(0ns, 1ms, 100us)}));
}

TEST_F(BestFit, ClosesAGapBeforeItsEndEvenForAJobThatSaysThatItWaits) {
  Competitor competitor = in_gap(1500us, 2ms, 100us);
  competitor.idle = true;
  EXPECT_FALSE(admits(kLow, {competitor}));
  EXPECT_EQ(policy_->decide(kLow, std::array{competitor}).retry_after, 700us);  // two spreads after the mean
}

TEST_F(BestFit, TrustsTheIdleHintOfAJobThatWaitsIrregularly) {
  Competitor competitor = in_gap(1500us, 2ms, 1ms);
  EXPECT_FALSE(admits(kLow, {competitor}));
  competitor.idle = true;
  EXPECT_TRUE(admits(kLow, {competitor}));
}

TEST_F(BestFit, UsesTheGraceWithoutAForecastOrIfItWasWrong) {
  EXPECT_FALSE(admits(kLow, {in_gap(150us, 0ns, 0ns)}));
  EXPECT_TRUE(admits(kLow, {in_gap(200us, 0ns, 0ns)}));
  EXPECT_FALSE(admits(kLow, {in_gap(2199us, 2ms, 100us)}));
  EXPECT_TRUE(admits(kLow, {in_gap(2200us, 2ms, 100us)}));
  EXPECT_TRUE(admits(kLow, {kWaitsForInput}));
  EXPECT_FALSE(admits(kLow, {kInside}));
}

TEST_F(BestFit, LetsAnOpOfUnknownLengthOnlyIntoGapsWithoutAForecast) {
  const Requester unknown{.priority = Priority::kSecondary};
  EXPECT_FALSE(admits(unknown, {in_gap(0ns, 1s, 0ns)}));
  EXPECT_TRUE(admits(unknown, {kQuiet}));
}

TEST_F(BestFit, AnOpThatIsNotMeasuredEntersAGapOnceItHasWaitedForLong) {
  Requester guessed{.priority = Priority::kSecondary, .op = 20ms, .is_guess = true, .waited = 99ms};
  EXPECT_FALSE(admits(guessed, {in_gap(0ns, 10ms, 0ns)}));
  guessed.waited = 100ms;
  EXPECT_TRUE(admits(guessed, {in_gap(0ns, 10ms, 0ns)}));
  EXPECT_FALSE(admits(guessed, {in_gap(10ms, 10ms, 0ns)})) << "the gap is over";
  EXPECT_FALSE(admits(guessed, {kInside}));
  guessed.is_guess = false;
  EXPECT_FALSE(admits(guessed, {in_gap(0ns, 10ms, 0ns)}));
}

TEST_F(BestFit, EveryHigherJobsGapMustHoldTheOp) {
  EXPECT_FALSE(admits({.priority = Priority::kLowest, .op = 1ms},
                      {in_gap(0ns, 5ms, 0ns), {.priority = Priority::kSecondary, .quiet = 0ns, .gap = {1ms, 1us}}}));
}

TEST_F(BestFit, ScansFromTheHighestPriorityDownAndTakesTheLongestThatFits) {
  const Competitor gap = in_gap(0ns, 5ms, 0ns);
  const auto requester = [](int level, std::chrono::nanoseconds op) {
    return Requester{.priority = static_cast<Priority>(level), .op = op};
  };
  // Levels 1 and 2 wait with ops of 6, 2 and 3 ms: the first does not fit; the longer of the others goes first.
  EXPECT_FALSE(admits(requester(1, 6ms), {gap}));
  EXPECT_FALSE(admits(requester(2, 2ms), {gap, waiting(1, 6ms), waiting(2, 3ms)}));
  EXPECT_TRUE(admits(requester(2, 3ms), {gap, waiting(1, 6ms), waiting(2, 2ms)}));
  // A shorter op of a higher level precedes a longer one of a lower level.
  EXPECT_FALSE(admits(requester(2, 3ms), {gap, waiting(1, 1ms)}));
  EXPECT_TRUE(admits(requester(1, 1ms), {gap}));
}

TEST_F(BestFit, OpsAlreadyInTheGapUsePartOfIt) {
  const Competitor gap = in_gap(1ms, 5ms, 0ns);
  const Competitor inside{.priority = Priority::kSecondary, .inside = true, .left = 2ms};
  EXPECT_TRUE(admits({.priority = Priority::kSecondary, .op = 2ms}, {gap, inside}));
  EXPECT_FALSE(admits({.priority = Priority::kSecondary, .op = 2001us}, {gap, inside}));
}

TEST_F(BestFit, WaitingHigherJobsDoNotBlockAnOpThatFitsWhereTheirsDoNot) {
  EXPECT_TRUE(admits({.priority = Priority::kLowest, .op = 1ms}, {in_gap(0ns, 2ms, 0ns), waiting(1, 3ms)}));
  EXPECT_FALSE(admits({.priority = Priority::kLowest, .op = 1ms}, {kQuiet, waiting(1, 3ms)}));  // it fits there
  Competitor just_came = waiting(1, 3ms);
  just_came.quiet = 0ns;  // it does not enter before its op fits
  EXPECT_TRUE(admits({.priority = Priority::kLowest, .op = 1ms}, {in_gap(0ns, 2ms, 0ns), just_came}));
}

TEST_F(BestFit, SaysWhenItIsWorthAskingAgain) {
  const auto retry = [&](std::chrono::nanoseconds op, const std::vector<Competitor>& competitors) {
    const Verdict verdict = policy_->decide({.priority = Priority::kSecondary, .op = op}, competitors);
    EXPECT_FALSE(verdict.admit);
    return verdict.retry_after;
  };
  EXPECT_EQ(retry(1ms, {kInside}), kGrace);
  EXPECT_EQ(retry(1ms, {kJustLeft}), 150us);
  EXPECT_EQ(retry(1ms, {in_gap(190us, 0ns, 0ns)}), 50us);      // not at once
  EXPECT_EQ(retry(3ms, {in_gap(500us, 2ms, 300us)}), 2100us);  // when the forecast turns out to be wrong
  EXPECT_EQ(retry(3ms, {in_gap(500us, 2ms, 10us)}), 1700us);   // the grace is longer than two spreads
  EXPECT_EQ(retry(2s, {in_gap(0ns, 1s, 0ns)}), 100ms);         // at the latest
  EXPECT_EQ(retry(1ms, {in_gap(0ns, 5ms, 0ns), waiting(1, 2ms)}), 50us);
}

TEST_F(BestFit, AGapIsRegularIfItsSpreadIsAtMostAQuarterOfItsMean) {
  Competitor competitor = in_gap(1700us, 2ms, 500us);
  competitor.idle = true;
  EXPECT_FALSE(admits(kLow, {competitor}));
  competitor.gap.spread = 501us;
  EXPECT_TRUE(admits(kLow, {competitor}));
}

TEST_F(BestFit, OfEqualJobsTheLongerOpGoesFirstOnlyIntoAForecastGap) {
  const Requester requester{.priority = Priority::kSecondary, .op = 1ms};
  EXPECT_FALSE(admits(requester, {in_gap(0ns, 5ms, 0ns), waiting(1, 2ms)}));
  EXPECT_TRUE(admits(requester, {in_gap(0ns, 5ms, 0ns), waiting(1, 1ms)}));
  EXPECT_TRUE(admits(requester, {kQuiet, waiting(1, 2ms)}));
}

TEST(MaxWait, AdmitsAnOpThatHasWaitedSoLong) {
  for (const char* name : {"strict", "best_fit"}) {
    const auto policy = make_gate_policy(name, {.grace = kGrace, .max_wait = 10ms});
    Requester requester = kLow;
    requester.waited = 9900us;
    const Verdict verdict = policy->decide(requester, std::array{kInside});
    EXPECT_FALSE(verdict.admit);
    EXPECT_EQ(verdict.retry_after, 100us);
    requester.waited = 10ms;
    EXPECT_TRUE(policy->decide(requester, std::array{kInside}).admit);
  }
  EXPECT_THROW(make_gate_policy("strict", {.max_wait = 0ns}), std::invalid_argument);
}

TEST(RunAhead, HoldsAJobThatHasLaunchedTooMuchUntilEnoughHasRun) {
  const auto policy = make_gate_policy("priority", {.run_ahead = 500us});
  EXPECT_TRUE(policy->concerns(Priority::kSecondary, Priority::kPrimary));
  EXPECT_FALSE(policy->concerns(Priority::kPrimary, Priority::kSecondary));
  EXPECT_TRUE(policy->forecasts());
  Requester requester = kLow;
  requester.ahead = 500us;
  EXPECT_TRUE(policy->decide(requester, std::array{kInside}).admit);
  requester.ahead = 800us;
  const Verdict verdict = policy->decide(requester, std::array{kQuiet});
  EXPECT_FALSE(verdict.admit);
  EXPECT_EQ(verdict.retry_after, 300us);
  EXPECT_THROW(make_gate_policy("strict", {.run_ahead = 0ns}), std::invalid_argument);
}

TEST(RunAhead, LeavesTheRestToThePolicy) {
  const auto policy = make_gate_policy("strict", {.grace = kGrace, .run_ahead = 500us});
  EXPECT_FALSE(policy->decide(kLow, std::array{kInside}).admit);
  EXPECT_TRUE(policy->decide(kLow, std::array{kQuiet}).admit);
}

TEST(ResourceAware, AdmitsMemoryBesideComputeAndViceVersa) {
  const auto policy = make_gate_policy("resource", {.grace = kGrace});
  const auto admits = [&](OpKind mine, OpKind competitors, std::optional<std::chrono::nanoseconds> op = 1ms) {
    const Competitor competitor{.inside = true, .kind = competitors};
    return policy->decide({.priority = Priority::kSecondary, .op = op, .kind = mine}, std::array{competitor}).admit;
  };
  EXPECT_TRUE(admits(OpKind::kMemory, OpKind::kCompute));
  EXPECT_TRUE(admits(OpKind::kCompute, OpKind::kMemory));
  EXPECT_FALSE(admits(OpKind::kCompute, OpKind::kCompute));
  EXPECT_FALSE(admits(OpKind::kMemory, OpKind::kMemory));
  EXPECT_FALSE(admits(OpKind::kUnknown, OpKind::kCompute));
  EXPECT_FALSE(admits(OpKind::kMemory, OpKind::kUnknown));
  EXPECT_FALSE(admits(OpKind::kMemory, OpKind::kCompute, std::nullopt)) << "of unknown length";
}

TEST(ResourceAware, IsBestFitIfNoJobIsInside) {
  const auto policy = make_gate_policy("resource", {.grace = kGrace});
  const Competitor gap{.quiet = 0ns, .gap = {5ms, 0ns}, .kind = OpKind::kCompute};
  EXPECT_TRUE(policy->decide({.op = 4ms, .kind = OpKind::kCompute}, std::array{gap}).admit);
  EXPECT_FALSE(policy->decide({.op = 6ms, .kind = OpKind::kMemory}, std::array{gap}).admit);
}

TEST(GatePolicy, RefusesUnknownNamesAndGraces) {
  EXPECT_THAT([] { make_gate_policy("fair", {}); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("policy must be one of best_fit, edf, priority, resource, strict, got 'fair'")));
  EXPECT_THAT([] { make_gate_policy("strict", {.grace = -1ns}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("grace must be from 0 to 1 s, got -1 ns")));
  EXPECT_THROW(make_gate_policy("best_fit", {.grace = 1s + 1ns}), std::invalid_argument);
  EXPECT_NO_THROW(make_gate_policy("best_fit", {.grace = 1s}));
  EXPECT_NO_THROW(make_gate_policy("strict", {.grace = 0ns}));
}

}  // namespace
}  // namespace torchshare
