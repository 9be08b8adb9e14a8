#include "sharing/slowdown_bound.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "model/time.h"
#include "planner/server_model.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A primary whose step takes `alone`, or `ratio` times that while the others run.
class Primary {
 public:
  double alone = 0.02;
  double ratio = 1.2;
  double noise = 0.03;
  nanoseconds now{1s};

  /// Mean slowdown over `duration`, after `settle`.
  double run(SlowdownBound& bound, nanoseconds settle, nanoseconds duration, bool beside = true) {
    const nanoseconds measured = now + settle;
    const nanoseconds end = measured + duration;
    double time = 0;
    double work = 0;
    open_ = 0;
    while (now < end) {
      const nanoseconds begin = now;
      const double open = step(bound.pace(), beside);
      bound.step(begin, now, beside);
      if (begin > measured) {
        time += std::chrono::duration<double>(now - begin).count();
        work += alone;
        open_ += open;
      }
    }
    open_ /= time;
    return time / work - 1;
  }
  double open() const { return open_; }  ///< share of the last run in which the others might run

 private:
  /// Simulates a step in small pieces of time; returns for how many seconds of it the others ran.
  double step(const Pace& pace, bool beside) {
    std::lognormal_distribution<double> factor(0, noise);
    double left = alone * factor(random_);
    double open = 0;
    while (left > 0) {
      const bool others = beside && pace.wait(now) == 0ns;
      const double piece = std::min(alone / 64, left * (others ? ratio : 1)) + 1e-9;
      left -= others ? piece / ratio : piece;
      open += others ? piece : 0;
      now += nanoseconds(static_cast<std::int64_t>(piece * 1e9));
    }
    return open;
  }
  std::mt19937 random_{7};
  double open_ = 0;
};

class EveryBound : public ::testing::TestWithParam<std::tuple<double, double, double>> {};

TEST_P(EveryBound, IsKeptAndUsed) {
  const auto [limit, ratio, step] = GetParam();
  SlowdownBound bound(limit);
  Primary primary;
  primary.ratio = ratio;
  primary.alone = step;
  const double slowdown = primary.run(bound, 10s, 60s);
  const double loss = 1 - 1 / ratio;
  // Noise leaves 5 % of the windows outside.
  const double aim = std::max(0.0, limit - 1.65 * primary.noise * std::sqrt(step));
  const double perfect = std::min(1.0, aim / (1 + aim) / loss);
  const double error = primary.noise * std::sqrt(step / 60);  // of the mean of a minute of steps
  EXPECT_LE(slowdown, limit + 4 * error);
  EXPECT_GE(primary.open(), 0.7 * perfect);
  EXPECT_NEAR(bound.alone(), step, 0.03 * step);
}

INSTANTIATE_TEST_SUITE_P(SlowdownBound, EveryBound,
                         ::testing::Combine(::testing::Values(0.02, 0.05, 0.10), ::testing::Values(1.03, 1.2, 1.8),
                                            ::testing::Values(0.001, 0.02, 0.3)));

/// Reports the answers of a server to a bound, as the runtime does.
class BoundServer {
 public:
  explicit BoundServer(SlowdownBound& bound) : bound_(bound) {}
  const Pace& pace() const { return bound_.pace(); }
  void answered(nanoseconds now, nanoseconds latency, nanoseconds queued, bool beside) {
    bound_.step(now - latency + queued, now, beside);
    times_.push_back(to_seconds(latency - queued));
  }
  /// Mean service time of the second half.
  Seconds mean() const {
    const auto half = times_.begin() + static_cast<std::ptrdiff_t>(times_.size() / 2);
    return std::accumulate(half, times_.end(), 0.0) / static_cast<double>(times_.end() - half);
  }

 private:
  SlowdownBound& bound_;
  std::vector<Seconds> times_;
};

TEST(SlowdownBound, BoundsTheServiceTimeOfAServerAndIsUsed) {
  std::mt19937_64 random(3);
  std::gamma_distribution<double> service(16, 0.01 / 16);
  std::vector<Seconds> times(10'000);
  std::generate(times.begin(), times.end(), [&] { return service(random); });
  const Seconds mean = std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  for (const double load : {0.2, 0.5, 0.8}) {
    for (const double ratio : {1.03, 1.5, 3.0}) {
      std::vector<Seconds> slower = times;
      std::transform(slower.begin(), slower.end(), slower.begin(), [&](Seconds time) { return ratio * time; });
      const ServerModel server({.per_second = load / mean, .service = times, .beside = slower, .op = 0.001});
      SlowdownBound bound(0.1, {}, BoundUnit::kRequest);
      BoundServer answers(bound);
      const ServerForecast found = server.run(answers, 1, 40'000, 1);
      const std::string what = fmt::format("load {}, ratio {}", load, ratio);
      EXPECT_LE(answers.mean(), 1.11 * mean) << what;
      EXPECT_NEAR(bound.alone(), mean, 0.05 * mean) << what;
      if (ratio < 2) {  // with 3, the few requests that the model slows down at all are over the bound
        const double perfect = std::min(1.0, 0.1 / 1.1 / (1 - 1 / ratio)) * (1 - load);
        EXPECT_GE(found.lower, 0.25 * perfect) << what;
      }
    }
  }
}

TEST(SlowdownBound, LetsOthersRunNearlyAlwaysWhereTheyCostNothing) {
  SlowdownBound bound(0.05);
  Primary primary;
  primary.ratio = 1;
  primary.run(bound, 10s, 30s);
  EXPECT_GE(bound.pace().share, 0.85);
}

TEST(SlowdownBound, FollowsWhatTheOthersCost) {
  SlowdownBound bound(0.05);
  Primary primary;
  primary.ratio = 1.05;
  primary.run(bound, 10s, 10s);
  EXPECT_GT(bound.pace().share, 0.6);
  primary.ratio = 1.5;
  EXPECT_LE(primary.run(bound, 20s, 30s), 0.055);
}

TEST(SlowdownBound, FollowsADriftOfTheStepAlone) {
  SlowdownBound bound(0.05);
  Primary primary;
  primary.run(bound, 10s, 10s);
  primary.alone = 0.03;  // the machine has become slower
  primary.run(bound, 20s, 30s);
  EXPECT_NEAR(bound.alone(), 0.03, 0.001);
}

TEST(SlowdownBound, GivesUpABoundThatCannotBeKept) {
  SlowdownBound none(0);
  Primary primary;
  primary.run(none, 10s, 20s);
  EXPECT_TRUE(none.cannot_hold());
  EXPECT_EQ(none.pace().share, 0);

  SlowdownBound bound(0.005);
  primary.ratio = 40;
  primary.run(bound, 10s, 20s);
  EXPECT_TRUE(bound.cannot_hold());
}

TEST(SlowdownBound, DoesNotAttributeAStallToTheOthers) {
  SlowdownBound bound(0.05);
  Primary primary;
  primary.run(bound, 10s, 10s);
  const double before = bound.loss();
  bound.step(primary.now, primary.now + 30s, true);
  EXPECT_EQ(bound.loss(), before);
  bound.step(primary.now, primary.now + 80ms, true);  // four times the step alone is none
  EXPECT_NE(bound.loss(), before);
}

TEST(SlowdownBound, TakesEightStallsInARowForANewStepTime) {
  SlowdownBound bound(0.05);
  Primary primary;
  primary.run(bound, 10s, 10s);
  const double before = bound.alone();
  const auto stall = [&] {
    bound.step(primary.now, primary.now + 1s, true);
    primary.now += 1s;
  };
  for (int stalls = 0; stalls < 7; ++stalls) {
    stall();
  }
  EXPECT_EQ(bound.alone(), before);
  bound.step(primary.now, primary.now + 20ms, true);  // not in a row
  primary.now += 20ms;
  for (int stalls = 0; stalls < 7; ++stalls) {
    stall();
  }
  EXPECT_NEAR(bound.alone(), before, 0.001);
  stall();
  EXPECT_EQ(bound.alone(), 1);
}

TEST(SlowdownBound, GivesUpOnlyIfTheSmallestShareExceedsTheBound) {
  for (const auto& [limit, gives_up] : {std::pair(0.013, false), std::pair(0.007, true)}) {
    SlowdownBound bound(limit);  // 2 % of the time cost 1 %
    Primary primary;
    primary.ratio = 2;
    primary.noise = 0.003;
    primary.run(bound, 10s, 20s);
    EXPECT_EQ(bound.cannot_hold(), gives_up) << limit;
  }
}

TEST(SlowdownBound, ACycleHasAtLeastFourSteps) {
  SlowdownBound bound(0.05);
  Primary primary;
  primary.alone = 0.3;
  primary.run(bound, 10s, 60s);
  EXPECT_NEAR(to_seconds(bound.pace().cycle), 4 * 0.3, 0.05);
  EXPECT_EQ(SlowdownBound(0.05, 0.001).pace().cycle, 200ms);
}

TEST(SlowdownBound, LeavesOneWindowInTwentyOutside) {
  SlowdownBound bound(0.05);
  Primary primary;
  primary.ratio = 1.5;
  primary.noise = 0.08;
  primary.run(bound, 0s, 1000s);
  const double outside = 1 - static_cast<double>(bound.windows_inside()) / static_cast<double>(bound.windows());
  EXPECT_NEAR(outside, 0.05, 0.015);
}

TEST(SlowdownBound, CountsWindowsWithOthersOnly) {
  SlowdownBound bound(0.5);
  Primary primary;
  primary.run(bound, 0s, 10s, false);
  EXPECT_EQ(bound.windows(), 0U);
  primary.run(bound, 0s, 20s, true);
  EXPECT_NEAR(static_cast<double>(bound.windows()), 20, 1);
  EXPECT_EQ(bound.windows_inside(), bound.windows());
  SlowdownBound tight(0);
  primary.noise = 0;
  primary.run(tight, 0s, 5s, true);
  EXPECT_LT(tight.windows_inside(), tight.windows());
}

TEST(SlowdownBound, AimsLowerWhereStepsVaryMore) {
  double open[2];
  for (const int noisy : {0, 1}) {
    SlowdownBound bound(0.05);
    Primary primary;
    primary.ratio = 1.5;
    primary.noise = noisy ? 0.2 : 0.01;
    primary.run(bound, 20s, 60s);
    open[noisy] = primary.open();
  }
  EXPECT_LT(open[1], 0.8 * open[0]);
}

TEST(SlowdownBound, FindsOutThatAProfileIsWrong) {
  for (const double wrong : {0.002, 0.2}) {
    SlowdownBound bound(0.05, wrong);
    Primary primary;
    EXPECT_LE(primary.run(bound, 20s, 30s), 0.06) << wrong;
    EXPECT_NEAR(bound.alone(), 0.02, 0.001) << wrong;
  }
}

TEST(SlowdownBound, LearnsTheStepAloneWhileNoOtherJobRuns) {
  SlowdownBound bound(0.05, 0.03);
  Primary primary;
  primary.run(bound, 0s, 500ms);
  primary.run(bound, 0s, 60s, false);
  EXPECT_NEAR(bound.alone(), 0.02, 0.0005);
  bound.step(primary.now, primary.now + 20ms, true);  // one step beside another job is no window
  EXPECT_EQ(bound.windows(), 0U);
}

TEST(SlowdownBound, BeginsWithTheProfilesStep) {
  EXPECT_EQ(SlowdownBound(0.05, 0.02).alone(), 0.02);
}

/// Steps of that time, alone.
void steps_alone(SlowdownBound& bound, nanoseconds& now, nanoseconds time, int count) {
  for (int step = 0; step < count; ++step, now += time) {
    bound.step(now, now + time, false);
  }
}

TEST(SlowdownBound, ForgetsStepsWithin10SecondsOr64Steps) {
  nanoseconds now = 1s;
  SlowdownBound bound_of_short_steps(0.05);
  steps_alone(bound_of_short_steps, now, 1ms, 20'000);
  steps_alone(bound_of_short_steps, now, 2ms, 1'000);
  EXPECT_NEAR(bound_of_short_steps.alone(), 0.00111, 0.00002);  // of 22 s, the last 2 were slower
  SlowdownBound bound_of_long_steps(0.05);
  steps_alone(bound_of_long_steps, now, 1s, 64);
  steps_alone(bound_of_long_steps, now, 2s, 10);
  EXPECT_NEAR(bound_of_long_steps.alone(), 1.21, 0.02);
}

TEST(SlowdownBound, DoesNotGiveUpBecauseOfNoise) {
  SlowdownBound bound(0.001);
  Primary primary;
  primary.ratio = 1;
  primary.noise = 0.2;
  primary.run(bound, 0s, 100s);
  EXPECT_FALSE(bound.cannot_hold());
}

TEST(SlowdownBound, DoesNotGiveUpWithin3Seconds) {
  SlowdownBound bound(0);
  Primary primary;
  primary.now = 100s;
  primary.run(bound, 0s, 2900ms);
  EXPECT_FALSE(bound.cannot_hold());
  primary.run(bound, 0s, 1s);
  EXPECT_TRUE(bound.cannot_hold());
}

TEST(SlowdownBound, AWindowBeginsAgainWhenTheOthersReturn) {
  SlowdownBound bound(0.05, 0.02);
  nanoseconds now = 1s;
  const auto steps_beside = [&](nanoseconds time, int count) {
    for (int step = 0; step < count; ++step, now += time) {
      bound.step(now, now + time, true);
    }
  };
  steps_beside(20ms, 45);
  steps_alone(bound, now, 20ms, 1);
  steps_beside(40ms, 25);
  EXPECT_EQ(bound.windows(), 1U);
  EXPECT_EQ(bound.windows_inside(), 0U);
}

TEST(SlowdownBound, BeginsWithAShareThatKeepsTheBoundWhateverTheOthersCost) {
  EXPECT_DOUBLE_EQ(SlowdownBound(0.25).pace().share, 0.2);
  EXPECT_DOUBLE_EQ(SlowdownBound(0.01).pace().share, 0.05);  // at least
}

TEST(SlowdownBound, LearnsFromTheFirstStepAndFromNoneWithoutDuration) {
  SlowdownBound bound(0.05);
  bound.step(1s, 1s, true);
  EXPECT_EQ(bound.alone(), 0);
  bound.step(1s, 1020ms, false);
  EXPECT_DOUBLE_EQ(bound.alone(), 0.02);
  bound.step(1020ms, 1020ms, true);
  EXPECT_DOUBLE_EQ(bound.alone(), 0.02);
}

TEST(SlowdownBound, ARequestAfterAPauseRanBesideTheOthersAllTheTime) {
  SlowdownBound bound(0.05, {}, BoundUnit::kRequest);
  nanoseconds now{0};
  const auto answer = [&](nanoseconds after) {
    now += after;
    const auto begin = now;
    now += bound.pace().wait(now).count() == 0 ? 20ms : 10ms;  // the others take half of the time
    bound.step(begin, now, true);
  };
  for (int i = 0; i < 2000; ++i) {
    answer(10ms);
  }
  EXPECT_NEAR(bound.alone(), 0.01, 0.001);
  const auto windows = bound.windows();
  const auto inside = bound.windows_inside();
  for (int i = 0; i < 30; ++i) {
    answer(2s);
  }
  EXPECT_GE(bound.windows(), windows + 10);
  EXPECT_LE(bound.windows_inside(), inside + 1);
  EXPECT_NEAR(bound.alone(), 0.01, 0.001);
}

TEST(SlowdownBound, RefusesInvalidBounds) {
  for (const double bad : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT([&] { SlowdownBound bound(bad); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("max_slowdown must be")));
  }
}

}  // namespace
}  // namespace torchshare
