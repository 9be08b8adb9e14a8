#include "policy/gate_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr auto kGrace = 200us;
constexpr Rival kInside{.inside = true, .idle = false, .quiet = 0ns};
constexpr Rival kJustLeft{.inside = false, .idle = false, .quiet = 50us};
constexpr Rival kQuiet{.inside = false, .idle = false, .quiet = 200us};
constexpr Rival kWaitsForInput{.inside = false, .idle = true, .quiet = 0ns};

/// What every policy must keep, whatever it decides.
class EveryGatePolicy : public ::testing::TestWithParam<std::string_view> {
 protected:
  std::unique_ptr<GatePolicy> policy_ = make_gate_policy(GetParam(), {.grace = kGrace});
};

TEST_P(EveryGatePolicy, NeverHoldsTheHighestJobForALowerOne) {
  EXPECT_FALSE(policy_->concerns(Priority::kPrimary, Priority::kSecondary));
}

TEST_P(EveryGatePolicy, AdmitsWhenNobodyIsInTheWay) {
  EXPECT_TRUE(policy_->decide({}).admit);
}

TEST_P(EveryGatePolicy, SaysWhenToAskAgainWhereItRefuses) {
  for (const Rival& rival : {kInside, kJustLeft, kQuiet, kWaitsForInput}) {
    const Verdict verdict = policy_->decide(std::array{rival});
    EXPECT_TRUE(verdict.admit || verdict.retry_after > 0ns);
    EXPECT_LT(verdict.retry_after, 1s + 1ns);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryGatePolicy, ::testing::ValuesIn(gate_policy_names()),
                         [](const auto& info) { return std::string(info.param); });

TEST(PriorityOnlyPolicy, MakesNobodyWait) {
  const auto policy = make_gate_policy("priority", {});
  EXPECT_FALSE(policy->concerns(Priority::kLowest, Priority::kPrimary));
}

TEST(StrictPolicy, KeepsLowerJobsOutWhileAHigherOneIsInsideOrJustLeft) {
  const auto policy = make_gate_policy("strict", {.grace = kGrace});
  EXPECT_TRUE(policy->concerns(Priority::kSecondary, Priority::kPrimary));
  EXPECT_FALSE(policy->concerns(Priority::kSecondary, Priority::kSecondary));
  EXPECT_FALSE(policy->decide(std::array{kQuiet, kInside}).admit);
  EXPECT_FALSE(policy->decide(std::array{kJustLeft}).admit);
  EXPECT_EQ(policy->decide(std::array{kJustLeft}).retry_after, 150us);
}

TEST(StrictPolicy, AdmitsAfterTheGraceOrOnAnIdleHint) {
  const auto policy = make_gate_policy("strict", {.grace = kGrace});
  EXPECT_TRUE(policy->decide(std::array{kQuiet}).admit);
  EXPECT_TRUE(policy->decide(std::array{kWaitsForInput}).admit);
}

TEST(GatePolicy, RefusesUnknownNamesAndGraces) {
  EXPECT_THAT([] { make_gate_policy("fair", {}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("policy 'fair': expected one of priority, strict")));
  EXPECT_THAT([] { make_gate_policy("strict", {.grace = -1ns}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("grace of -1 ns")));
}

}  // namespace
}  // namespace torchshare
