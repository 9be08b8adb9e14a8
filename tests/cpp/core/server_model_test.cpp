#include "planner/server_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace torchshare {
namespace {

constexpr Seconds kLimit = 0.02;

TEST(ServerModel, AloneItWaitsAsPollaczekAndKhinchineSay) {
  for (const double load : {0.2, 0.5, 0.8}) {
    const ServerModel server({.per_second = load / 0.01, .service = {0.01}, .op = 1e-3});
    EXPECT_NEAR(server.forecast(0, kLimit).latency.mean(), 0.01 * (1 + load / (2 * (1 - load))), 1e-3) << load;
    EXPECT_EQ(server.forecast(0, kLimit).lower, 0);
  }
}

TEST(ServerModel, ARequestWaitsForTheOpThatItFinds) {
  const ServerModel server({.per_second = 1, .service = {0.01}, .op = 0.1});
  const ServerForecast seldom_idle = server.forecast(1, kLimit);
  EXPECT_NEAR(seldom_idle.latency.mean(), 0.01 + 0.05, 0.002);
  EXPECT_GT(seldom_idle.lower, 0.95);
}

TEST(ServerModel, RequestsTakeAsLongAsWasMeasuredBesideTheLowerJobForTheShareOfTheTimeInWhichItMayRun) {
  const ServerModel server({.per_second = 1, .service = {0.001}, .beside = {0.101}, .op = 1e-6});
  EXPECT_NEAR(server.forecast(1, 0.05).latency.quantile(0.01), 0.101, 0.003);
  EXPECT_NEAR(server.forecast(0, 0.05).latency.quantile(0.99), 0.001, 1e-4);
  EXPECT_NEAR(server.forecast(0.25, 0.05).late, 0.25, 0.07);  // some wait for a slow one, or see a slice begin
}

TEST(ServerModel, SeveralRequestsAreAnsweredAtATime) {
  const ServerModel one({.per_second = 90, .service = {0.01}, .op = 1e-3});
  const ServerModel four({.per_second = 90, .service = {0.01}, .op = 1e-3, .parallel = 4});
  EXPECT_GT(one.forecast(0, kLimit).latency.mean(), 0.04);
  EXPECT_LT(four.forecast(0, kLimit).latency.mean(), 0.011);
}

TEST(ServerModel, ARequestWaitsForOthersThatAreAnsweredWithIt) {
  const ServerModel server({.per_second = 1, .service = {0.01}, .op = 1e-3, .wait = 0.005});
  EXPECT_NEAR(server.forecast(0, kLimit).latency.quantile(0.5), 0.015, 4e-4);
}

TEST(ServerModel, RequestsThatComeBackToBackWaitForNothingAndLeaveNoTime) {
  const ServerForecast found = ServerModel({.service = {0.01}, .op = 1e-3}).forecast(1, kLimit);
  EXPECT_NEAR(found.latency.quantile(0.99), 0.01, 3e-4);
  EXPECT_EQ(found.lower, 0);
}

TEST(ServerModel, TheLargestShareHoldsThePromiseAndALargerOneDoesNot) {
  const ServerModel server({.per_second = 20, .service = {0.005}, .op = 0.012});
  const LatencyTarget target{0.95, 0.015};
  const double share = server.largest_share(target);
  EXPECT_GT(share, 0.01);
  EXPECT_LT(share, 0.9);
  EXPECT_LE(server.forecast(share, target.limit).late, 0.05);
  EXPECT_GT(server.forecast(1.1 * share, target.limit).late, 0.05);
  EXPECT_EQ(server.largest_share({0.95, 1}), 1);
  EXPECT_EQ(server.largest_share({0.95, 0.004}), 0);
}

TEST(ServerModel, RefusesALoadThatIsNone) {
  for (const ServerLoad& load :
       {ServerLoad{.op = 1}, ServerLoad{.service = {0}, .op = 1}, ServerLoad{.service = {1}},
        ServerLoad{.service = {1}, .beside = {-1}, .op = 1}, ServerLoad{.per_second = -1, .service = {1}, .op = 1},
        ServerLoad{.service = {1}, .op = 1, .parallel = 0}}) {
    EXPECT_THROW(ServerModel{load}, std::invalid_argument);
  }
}

}  // namespace
}  // namespace torchshare
