#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "model/latency_target.h"
#include "model/request_times.h"
#include "planner/server_model.h"
#include "sharing/latency_pace.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

TEST(LatencyTarget, IsReadFromText) {
  EXPECT_EQ(parse_latency_target("p99<20ms"), (LatencyTarget{0.99, 0.02}));
  EXPECT_EQ(parse_latency_target(" p50 < 1.5 s "), (LatencyTarget{0.5, 1.5}));
  EXPECT_NEAR(parse_latency_target("p99.9<300us").quantile, 0.999, 1e-12);
  EXPECT_EQ(to_string(parse_latency_target("p99.9<300us")), "p99.9<0.3ms");
}

TEST(LatencyTarget, NamesWhatItExpected) {
  for (const char* text :
       {"", "p99", "p100<1s", "p0<1s", "99<20ms", "p99<20", "p99<0ms", "p99>20ms", "p99<20ms!", "p99<-1ms"}) {
    try {
      parse_latency_target(text);
      FAIL() << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(),
                "slo must be a percentile below 100 and a time in us, ms or s, such as 'p99<20ms', got '" +
                    std::string(text) + "'");
    }
  }
}

TEST(RequestTimes, CountsWaitingAndAnswering) {
  RequestTimes times;
  times.promise(0.005);
  times.answered(0ms, 1ms, 3ms);
  times.answered(0ms, 5ms, 9ms);
  times.failed();
  EXPECT_EQ(times.latency().count(), 2U);
  EXPECT_EQ(times.failures(), 1U);
  EXPECT_EQ(times.late(), 1U);
  EXPECT_DOUBLE_EQ(times.latency().mean(), 0.006);
  EXPECT_DOUBLE_EQ(times.service().mean(), 0.003);
  EXPECT_DOUBLE_EQ(times.queued().mean(), 0.003);
}

TEST(TimeSpread, QuantilesAreWithinTwoPercent) {
  TimeSpread spread;
  for (int i = 1; i <= 10'000; ++i) {
    spread.add(i * 1us);
  }
  for (const double share : {0.5, 0.95, 0.99}) {
    EXPECT_GE(spread.quantile(share), share * 0.01 * 0.999);
    EXPECT_LE(spread.quantile(share), share * 0.01 * 1.023);
  }
  EXPECT_NEAR(static_cast<double>(spread.at_most(0.005)), 5000, 5000 * 0.023);
}

constexpr double kService = 0.01;  // seconds, on average

/// How much what requests take varies.
enum class Law { kConstant, kGamma, kExponential, kOneInTenIsLong };

std::string name_of(Law law) {
  return std::array{"Constant", "Gamma", "Exponential", "OneInTenIsLong"}.at(static_cast<std::size_t>(law));
}

std::vector<Seconds> service_times(Law law) {
  std::mt19937_64 random(3);
  std::gamma_distribution<double> gamma(4, kService / 4);
  std::exponential_distribution<double> exponential(1 / kService);
  std::vector<Seconds> times(10'000, kService);
  for (std::size_t i = 0; i < times.size(); ++i) {
    switch (law) {
      case Law::kConstant:
        break;
      case Law::kGamma:
        times[i] = gamma(random);
        break;
      case Law::kExponential:
        times[i] = exponential(random);
        break;
      case Law::kOneInTenIsLong:
        times[i] = kService * (i % 10 == 0 ? 5.5 : 0.5);
        break;
    }
  }
  return times;
}

/// A server whose requests take kService on average, beside a job with ops of `op` of that. A request that finds such
/// an op waits for its end.
ServerModel server(double load, double op, Law law = Law::kGamma) {
  return ServerModel({.per_second = load / kService, .service = service_times(law), .op = op * kService});
}

/// A lower job that never runs.
struct Held {
  Pace pace() const { return {.share = 0}; }
  void answered(nanoseconds, nanoseconds latency, nanoseconds, bool) { all.push_back(to_seconds(latency)); }
  std::vector<Seconds> all;
};

/// The latency below which `quantile` of the requests are if the server is alone.
Seconds alone(const ServerModel& server, double quantile) {
  Held held;
  server.run(held, 1, 200'000, 1);
  std::sort(held.all.begin(), held.all.end());
  return held.all[static_cast<std::size_t>(quantile * static_cast<double>(held.all.size()))];
}

constexpr double kQuantile = 0.99;
constexpr int kRequests = 20'000;

class EveryServer : public ::testing::TestWithParam<Law> {};

TEST_P(EveryServer, KeepsThePromiseInMostRunsAndLeavesTheLowerJobMostOfWhatThereIs) {
  int runs = 0;
  int held = 0;
  double share = 0;
  int cases = 0;
  for (const double load : {0.2, 0.5, 0.8}) {
    for (const double op : {0.1, 0.5, 1.0, 5.0}) {
      for (const double slack : {1.25, 1.5}) {
        const ServerModel beside = server(load, op, GetParam());
        const double limit = slack * alone(beside, kQuantile);
        const double best = beside.forecast(beside.largest_share({kQuantile, limit}), limit).lower;
        double lower = 0;
        for (unsigned seed = 100; seed < 106; ++seed) {
          LatencyPace pace({kQuantile, limit});
          const ServerForecast run = beside.run(pace, limit, kRequests, seed);
          lower += run.lower / 6;
          Held none;
          if (beside.run(none, limit, kRequests, seed).late <= 1 - kQuantile) {  // the server keeps it alone
            ++runs;
            held += run.late <= 1 - kQuantile ? 1 : 0;
          }
        }
        share += lower / best;
        ++cases;
        EXPECT_GE(lower / best, 0.65) << "load " << load << ", op " << op << ", slack " << slack;
      }
    }
  }
  EXPECT_GE(runs, 125);  // of 144
  EXPECT_GE(held, 0.95 * runs);
  EXPECT_GE(share / cases, 0.85);
}

INSTANTIATE_TEST_SUITE_P(LatencyPace, EveryServer,
                         ::testing::Values(Law::kConstant, Law::kGamma, Law::kExponential, Law::kOneInTenIsLong),
                         [](const auto& info) { return name_of(info.param); });

TEST(LatencyPace, APromiseHoldsIfAServerIsSeldomAskedAndShortOpsRunAlmostAllTheTime) {
  for (const double load : {0.002, 0.02}) {
    for (const double op : {0.5, 5.0}) {
      const ServerModel beside = server(load, op);
      const double limit = 1.25 * alone(beside, kQuantile);
      int held = 0;
      double lower = 0;
      for (unsigned seed = 100; seed < 110; ++seed) {
        LatencyPace pace({kQuantile, limit});
        const ServerForecast run = beside.run(pace, limit, 3000, seed);
        held += run.late <= 1 - kQuantile ? 1 : 0;
        lower += run.lower / 10;
      }
      EXPECT_GE(held, 9) << "load " << load << ", op " << op;
      EXPECT_GE(lower, op < 1 ? 0.8 : 0.01) << "load " << load;
    }
  }
}

TEST(LatencyPace, LowerJobsRunAtAnyTimeUntilTheFirstAnswerAndOnceAServerHasAnsweredNothingForLong) {
  LatencyPace pace({0.99, 0.02});
  EXPECT_EQ(pace.pace().wait(0ns), 0ns);
  pace.answered(1s, 30ms, 0ns, true);
  pace.answered(2s, 30ms, 0ns, true);
  EXPECT_EQ(pace.pace().share, 0);
  EXPECT_GT(pace.pace().wait(62s), 0ns);
  EXPECT_EQ(pace.pace().wait(1h), 0ns);
}

TEST(LatencyPace, RequestsThatALowerJobMayHaveDelayedAreNotThoseOfAServerAlone) {
  LatencyPace pace({0.9, 0.02});
  for (int i = 1; i < 100; ++i) {
    pace.answered(i * 24h, 30ms, 0ms, true);  // lower jobs ran before each
  }
  EXPECT_FALSE(pace.cannot_hold());
}

TEST(LatencyPace, TakesAPromiseThatNothingCanHold) {
  LatencyPace pace({0.99, 1e-12});
  pace.answered(1s, 1ms, 0ms, true);
  EXPECT_GE(pace.pace().wait(1s), 0ns);
}

TEST(LatencyPace, APromiseThatIsMissedAloneIsGivenUpAndLowerJobsAreHeld) {
  const ServerModel beside = server(0.8, 1);
  const double limit = 0.5 * alone(beside, kQuantile);
  LatencyPace pace({kQuantile, limit});
  const ServerForecast run = beside.run(pace, limit, kRequests, 1);
  EXPECT_TRUE(pace.cannot_hold());
  EXPECT_EQ(pace.pace().share, 0);
  EXPECT_LE(run.lower, 0.05);
}

TEST(LatencyPace, LateRequestsWithoutLowerJobsBesideDoNotCount) {
  LatencyPace pace({0.99, 0.01});
  const Pace before = pace.pace();
  for (int i = 1; i < 1000; ++i) {
    pace.answered(i * 10ms, 20ms, 0ms, false);
  }
  EXPECT_EQ(pace.pace(), before);
  EXPECT_EQ(pace.stats().answered, 0U);
}

TEST(LatencyPace, RequestsInTimeLetLowerJobsRunAllTheTime) {
  LatencyPace pace({0.99, 0.01});
  for (int i = 1; i < 1000; ++i) {
    pace.answered(i * 10ms, 1ms, 0ms, true);
  }
  EXPECT_EQ(pace.pace().share, 1);
}

TEST(LatencyPace, LowerJobsAreHeldWhileTheQueueAloneIsLongerThanThePromise) {
  LatencyPace pace({0.9, 0.01});
  for (int i = 1; i < 1000; ++i) {
    pace.answered(i * 10ms, 1ms, 0ms, true);  // saves a budget that one late request does not use up
  }
  pace.answered(10s, 15ms, 12ms, true);
  EXPECT_EQ(pace.pace().share, 0);
  pace.answered(10010ms, 5ms, 2ms, true);
  EXPECT_GT(pace.pace().share, 0.5);
}

}  // namespace
}  // namespace torchshare
