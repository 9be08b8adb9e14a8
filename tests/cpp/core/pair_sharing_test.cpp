#include "sharing/pair_sharing.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sharing/auto_sharing.h"

namespace torchshare {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kSteps = 1000;  // of each job
constexpr Seconds kStep = 0.1;   // a step alone

/// Two jobs directed by AutoSharing: the first starts at once, the second is automatic. The test says how long each
/// step takes.
class TwoJobs {
 public:
  struct Options {
    double ratio = 0;  // in the profiles; 0: no profiles
    double second_ratio = ratio;
    Seconds second_alone = 0;  // 0: as the first's
    std::optional<double> max_slowdown = {};
    Priority first = Priority::kPrimary;
    Priority second = Priority::kSecondary;
    Seconds first_deadline = 0;  // from the start; 0: none
    Seconds second_deadline = 0;
    double steps = kSteps;
    bool knows_steps = true;
    Seconds step = kStep;
  };

  explicit TwoJobs(const Options& options)
      : sharing(options.max_slowdown), steps_of_each(options.steps), alone(options.step) {
    SharedJob first{.name = "a", .priority = options.first, .starts_now = true, .steps = options.steps};
    SharedJob second{.name = "b", .priority = options.second, .automatic = true, .steps = options.steps};
    if (options.ratio > 0) {
      first.profile = {"pa", options.step, {{"pb", {options.ratio, options.second_ratio}}}};
      second.profile = {"pb", options.second_alone > 0 ? options.second_alone : options.step, {}};
    }
    if (!options.knows_steps) {
      first.steps = second.steps = {};
    }
    const auto from_now = [&](Seconds time) {
      return time > 0 ? std::optional(at() + from_seconds(time)) : std::nullopt;
    };
    first.ends_by = from_now(options.first_deadline);
    second.ends_by = from_now(options.second_deadline);
    sharing.arrive(0, std::move(first));
    sharing.arrive(1, std::move(second));
    sharing.start(0, at());
    at_once = decide();
  }

  /// Each of `jobs` does a step of that time; returns the first order that follows, such as "hold b", or "none".
  std::string step(std::initializer_list<JobId> jobs, Seconds time) {
    now += time;
    std::string order = "none";
    for (const JobId job : jobs) {
      sharing.step(job, at());
      order = order == "none" ? decide() : order;
    }
    return order;
  }
  /// Repeats such steps until there is an order, at most `most` times.
  std::string steps(std::initializer_list<JobId> jobs, Seconds time, int most = 200) {
    std::string order = "none";
    for (int done = 0; done < most && order == "none"; ++done) {
      order = step(jobs, time);
    }
    return order;
  }
  /// A whole probe of jobs that slow each other down by `ratio`, and share well.
  void probe(double ratio) {
    EXPECT_EQ(steps({0}, kStep), "start b");
    EXPECT_EQ(steps({0, 1}, ratio * kStep), "hold a");
    EXPECT_EQ(steps({1}, kStep), "release a");
  }
  std::string decide() {
    const auto orders = sharing.decide(at());
    if (orders.empty()) {
      return "none";
    }
    reason = orders.front().reason;
    constexpr const char* kActions[] = {"start", "hold", "release", "stay"};
    return fmt::format("{} {}", kActions[static_cast<int>(orders.front().action)], "ab"[orders.front().job]);
  }

  std::chrono::nanoseconds at() const { return std::chrono::nanoseconds(std::llround(1e9 * now)); }

  AutoSharing sharing;
  double steps_of_each;
  Seconds alone;
  int holds = 0;
  Seconds now = 1000;
  std::string reason;   // of the last order
  std::string at_once;  // the order at the arrival
};

/// When each of the jobs has done its steps, if the second slows the first down by `ratio` and vice versa. Their
/// decisions are made after each step and whenever they have asked for one.
std::array<Seconds, 2> ends_of(TwoJobs& jobs, double ratio) {
  const Seconds begin = jobs.now;
  std::array<double, 2> left{jobs.steps_of_each, jobs.steps_of_each};
  std::array<double, 2> to_step{1, 1};  // the rest of the present step
  std::array<Seconds, 2> ends{};
  std::array<bool, 2> runs{true, jobs.at_once == "start b"};
  if (jobs.at_once == "hold a") {
    runs = {false, true};
  }
  while (left[0] > 0 || left[1] > 0) {
    const std::array<bool, 2> busy{runs[0] && left[0] > 0, runs[1] && left[1] > 0};
    const Seconds per_step = jobs.alone * (busy[0] && busy[1] ? ratio : 1);
    Seconds next = jobs.sharing.retry_at() == kNever ? 1e9 : to_seconds(jobs.sharing.retry_at() - jobs.at()) + 1e-6;
    for (const std::size_t job : {0, 1}) {
      next = busy[job] ? std::min(next, to_step[job] * per_step) : next;
    }
    next = std::max(next, 1e-6);
    jobs.now += next;
    for (const JobId job : {0, 1}) {
      to_step[job] -= busy[job] ? next / per_step : 0;
      if (busy[job] && to_step[job] < 1e-6) {
        to_step[job] = 1;
        jobs.sharing.step(job, jobs.at());
        if (--left[job] <= 0) {
          ends[job] = jobs.now - begin;
          jobs.sharing.end(job);
        }
      }
    }
    for (const AutoSharing::Order& order : jobs.sharing.decide(jobs.at())) {
      if (order.action != AutoSharing::Action::kStay) {
        runs[order.job] = order.action != AutoSharing::Action::kHold;
        jobs.holds += runs[order.job] ? 0 : 1;
      }
    }
  }
  return ends;
}

TEST(PairSharing, KeepsTheDeadlineOfTheFirst) {
  TwoJobs free({.ratio = 1.3});
  EXPECT_NEAR(ends_of(free, 1.3)[0], 130, 0.1);
  TwoJobs jobs({.ratio = 1.3, .first_deadline = 115});
  EXPECT_EQ(jobs.at_once, "stay b");
  const auto [first, second] = ends_of(jobs, 1.3);
  EXPECT_LE(first, 115);
  EXPECT_LT(second, 190) << "they share while that is possible";
}

TEST(PairSharing, KeepsTheDeadlineOfTheSecond) {
  TwoJobs free({.ratio = 1.6});
  EXPECT_NEAR(ends_of(free, 1.6)[1], 200, 0.1);
  for (const Seconds deadline : {180, 110}) {
    TwoJobs jobs({.ratio = 1.6, .second_deadline = deadline});
    EXPECT_LE(ends_of(jobs, 1.6)[1], deadline);
  }
}

TEST(PairSharing, KeepsADeadlineThoughItsProfileIsTenPercentWrong) {
  for (const double actual : {1.18, 1.3, 1.42}) {
    TwoJobs jobs({.ratio = 1.3, .first_deadline = 115});
    EXPECT_LE(ends_of(jobs, actual)[0], 115) << actual;
  }
}

TEST(PairSharing, LongStepsDoNotHoldTheSecondInTheMiddleOfEach) {
  for (int deadline = 106; deadline < 140; ++deadline) {
    TwoJobs jobs({.ratio = 1.3, .first_deadline = 1.0 * deadline, .steps = 20, .step = 5});
    EXPECT_LE(ends_of(jobs, 1.3)[0], deadline);
    EXPECT_LE(jobs.holds, 3) << deadline;
  }
}

TEST(PairSharing, ADeadlineThatIsLostEvenAloneDelaysNobodyElse) {
  EXPECT_EQ(TwoJobs({.ratio = 1.8, .second_deadline = 110}).at_once, "hold a");
  EXPECT_EQ(TwoJobs({.ratio = 1.8, .second_deadline = 90}).at_once, "stay b");
  EXPECT_EQ(TwoJobs({.ratio = 1.8}).at_once, "stay b");
}

TEST(PairSharing, ADeadlineOfAJobOfUnknownLengthChangesNothing) {
  EXPECT_EQ(TwoJobs({.ratio = 1.8, .second_deadline = 110, .knows_steps = false}).at_once, "stay b");
}

TEST(PairSharing, AProbeThatWouldCostADeadlineIsCutShort) {
  for (const auto& [deadline, order] : {std::pair(200.0, "hold a"), std::pair(103.0, "hold b")}) {
    TwoJobs jobs({.first_deadline = deadline});
    EXPECT_EQ(jobs.steps({0}, kStep), "start b");
    EXPECT_EQ(jobs.steps({0, 1}, 2 * kStep), order);
  }
}

TEST(PairSharing, AJobThatBeginsToAnswerRequestsIsPlannedNoMore) {
  TwoJobs jobs({.ratio = 1.3, .first_deadline = 115});
  EXPECT_LT(jobs.sharing.retry_at(), kNever);
  jobs.sharing.answer(0, jobs.at());
  jobs.now += 200;
  jobs.decide();
  EXPECT_GT(jobs.sharing.retry_at(), jobs.at()) << "else the coordinator's thread does nothing else";
}

TEST(PairSharing, ADeadlineThatIsFarAwayChangesNothing) {
  TwoJobs free({.ratio = 1.3});
  TwoJobs jobs({.ratio = 1.3, .first_deadline = 1000, .second_deadline = 1000});
  EXPECT_EQ(jobs.at_once, free.at_once);
  EXPECT_EQ(ends_of(jobs, 1.3), ends_of(free, 1.3));
}

TEST(PairSharing, AStepAcrossAStartOrAHoldIsNotMeasured) {
  TwoJobs jobs({});
  EXPECT_EQ(jobs.at_once, "none");
  EXPECT_EQ(jobs.steps({0}, kStep), "start b");
  EXPECT_EQ(jobs.step({0}, 0.7 * kStep), "none");  // begun alone
  EXPECT_EQ(jobs.steps({0, 1}, 2 * kStep), "hold a");
  EXPECT_EQ(jobs.step({1}, 1.7 * kStep), "none");  // begun beside the first
  jobs.steps({1}, kStep);
  EXPECT_THAT(jobs.reason, StartsWith("auto: ratios 2 and 2;"));
}

TEST(PairSharing, StepsOfAJobThatIsLetInAreNotMeasured) {
  TwoJobs jobs({});
  EXPECT_EQ(jobs.steps({0}, kStep, 4), "none");
  jobs.now += 2;  // the first stalls
  EXPECT_EQ(jobs.decide(), "start b");
  EXPECT_EQ(jobs.steps({1}, kStep, 10), "none");  // alone in fact
  EXPECT_EQ(jobs.step({0}, kStep), "hold b");
  EXPECT_EQ(jobs.steps({0}, kStep), "release b");
  EXPECT_EQ(jobs.steps({0, 1}, 2 * kStep), "hold a");
  jobs.steps({1}, kStep);
  EXPECT_THAT(jobs.reason, StartsWith("auto: ratios 2 and 2;"));
}

/// Steps whose times vary too much for an exact mean.
std::string vary(TwoJobs& jobs, std::initializer_list<JobId> ids, Seconds mean) {
  std::string order = "none";
  for (int step = 0; step < 200 && order == "none"; ++step) {
    order = jobs.step(ids, mean * (step % 2 == 0 ? 0.1 : 1.9));
  }
  return order;
}

TEST(PairSharing, AProbeOfVaryingStepsTakesAtMostItsShareOfTheWork) {
  TwoJobs jobs({});
  Seconds before = jobs.now;
  EXPECT_EQ(vary(jobs, {0}, kStep), "start b");
  EXPECT_NEAR(jobs.now - before, 0.05 * kSteps * kStep / 3, 0.6);  // the second's work is not known yet
  before = jobs.now;
  EXPECT_EQ(vary(jobs, {0, 1}, 2 * kStep), "hold a");
  EXPECT_NEAR(jobs.now - before, 0.05 * 3 * kSteps * kStep / 3, 1.2);  // the second's are 0.2 s beside the first
  before = jobs.now;
  EXPECT_NE(vary(jobs, {1}, kStep), "none");
  EXPECT_NEAR(jobs.now - before, 0.05 * 2 * kSteps * kStep / 3, 0.6);
}

TEST(PairSharing, AProbeWaitsOnlySoLongForAStarvedSecond) {
  TwoJobs jobs({});
  EXPECT_EQ(jobs.steps({0}, kStep), "start b");
  EXPECT_EQ(jobs.step({0, 1}, kStep), "none");
  const Seconds before = jobs.now;
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(jobs.steps({0}, kStep, 14), "none");
    EXPECT_EQ(jobs.step({0, 1}, kStep), "none");  // takes 1.5 s, and is still a warm-up step
  }
  EXPECT_EQ(jobs.steps({0}, kStep), "hold a");
  EXPECT_NEAR(jobs.now - before, 2 * 0.05 * kSteps * kStep / 3, 0.15);
  jobs.steps({1}, kStep);
  EXPECT_THAT(jobs.reason, StartsWith("auto: ratios 1 and 16.5;"));  // 3.3 s for two steps
}

TEST(PairSharing, TheTimeInWhichTheUserSuspendsAJobDoesNotStarveTheSecond) {
  TwoJobs jobs({});
  EXPECT_EQ(jobs.steps({0}, kStep), "start b");
  EXPECT_EQ(jobs.step({0, 1}, kStep), "none");
  jobs.sharing.suspend(0, true, jobs.at());
  EXPECT_EQ(jobs.decide(), "none");
  jobs.now += 100;
  jobs.sharing.suspend(0, false, jobs.at());
  EXPECT_EQ(jobs.steps({0, 1}, 2 * kStep, 4), "none");  // its warm-up steps, and then one that counts
  EXPECT_EQ(jobs.steps({0, 1}, 2 * kStep), "hold a");
  jobs.steps({1}, kStep);
  EXPECT_THAT(jobs.reason, StartsWith("auto: ratios 2 and 2;"));
}

TEST(PairSharing, AProbeEndsOnceTheRatioIsKnownTo3Percent) {
  TwoJobs jobs({});
  int steps = 0;
  for (std::string order = "none"; order == "none"; ++steps) {
    order = jobs.step({0}, (steps % 2 == 0 ? 0.95 : 1.05) * kStep);
  }
  EXPECT_EQ(steps, 3 + 7);  // 0.05 / sqrt(7) is below 0.03 / sqrt(2), the share of one of its two step times
}

TEST(PairSharing, ProbesAgainOnlyAfterFiveTimesTheLengthOfAProbe) {
  for (const auto& [rest, reason] :
       {std::pair(2.0, "auto: ratios"), std::pair(5.2, "auto: probe: steps of the first alone")}) {
    TwoJobs jobs({});
    const Seconds began = jobs.now;
    jobs.probe(1.2);
    const double both = rest * (jobs.now - began) / (1.2 * kStep);
    jobs.step({0, 1}, 1.2 * kStep);
    EXPECT_EQ(jobs.steps({0, 1}, 1.2 * kStep, static_cast<int>(both)), "none");
    EXPECT_NE(jobs.steps({0, 1}, 2.4 * kStep), "none");
    EXPECT_THAT(jobs.reason, StartsWith(reason));
  }
}

TEST(PairSharing, ANewProbeForgetsTheOldOne) {
  TwoJobs jobs({});
  jobs.probe(1.2);
  jobs.steps({0, 1}, 1.2 * kStep, 100);
  EXPECT_EQ(jobs.steps({0, 1}, 3 * kStep), "hold b");
  jobs.step({0}, kStep);  // begun beside the second
  EXPECT_EQ(jobs.steps({0}, 1.5 * kStep), "release b");
  jobs.step({0, 1}, 3 * kStep);
  EXPECT_EQ(jobs.steps({0, 1}, 3 * kStep), "hold a");
  jobs.step({1}, kStep);
  jobs.steps({1}, 1.5 * kStep);
  EXPECT_THAT(jobs.reason, StartsWith("auto: ratios 2 and 2;"));
}

TEST(PairSharing, ANewProbeKeepsTheStepTimeOfAJobThatDidNotRunSince) {
  TwoJobs jobs({});
  EXPECT_EQ(jobs.steps({0}, kStep), "start b");
  EXPECT_EQ(jobs.steps({0, 1}, 2 * kStep), "hold a");
  EXPECT_EQ(jobs.steps({1}, kStep), "release a");
  EXPECT_EQ(jobs.steps({0}, kStep, 100), "none");
  EXPECT_EQ(jobs.steps({0}, 3 * kStep), "release b");
  EXPECT_THAT(jobs.reason, StartsWith("auto: probe: steps of both"));
  EXPECT_NE(jobs.steps({0, 1}, 4 * kStep), "none");
  EXPECT_THAT(jobs.reason, StartsWith("auto: ratios"));  // the second alone is known
}

TEST(PairSharing, ThePauseAfterAProbeIsFiveTimesTheLastOne) {
  TwoJobs jobs({});
  jobs.probe(1.2);
  jobs.steps({0, 1}, 1.2 * kStep, 100);
  EXPECT_EQ(jobs.steps({0, 1}, 3 * kStep), "hold b");
  EXPECT_EQ(jobs.steps({0}, 2.5 * kStep), "release b");
  EXPECT_EQ(jobs.steps({0, 1}, 3 * kStep), "hold a");
  EXPECT_EQ(jobs.steps({1}, 2.5 * kStep), "release a");
  EXPECT_EQ(jobs.steps({0, 1}, 3 * kStep, 120), "none");
  EXPECT_EQ(jobs.steps({0, 1}, 9 * kStep), "hold b");
  EXPECT_THAT(jobs.reason, StartsWith("auto: probe: steps of the first alone"));
}

/// Sharing at once ends both after `ratio` * 100 s; one after the other, after 100 and 200 s.
constexpr double kGainOf2Percent = 1.47;
constexpr double kGainOf4Percent = 1.44;

TEST(PairSharing, DoesNotSlowDownAHigherJobForAGainOfLessThan3Percent) {
  constexpr Priority kEqual = Priority::kSecondary;
  EXPECT_EQ(TwoJobs({.ratio = kGainOf4Percent}).at_once, "start b");
  EXPECT_EQ(TwoJobs({.ratio = kGainOf2Percent}).at_once, "stay b");
  EXPECT_EQ(TwoJobs({.ratio = kGainOf2Percent, .first = kEqual}).at_once, "stay b");
  EXPECT_EQ(TwoJobs({.ratio = kGainOf2Percent, .first = kEqual, .second = Priority::kPrimary}).at_once, "start b");
}

TEST(PairSharing, ChangesAPlanForAGainOfMoreThan3PercentOnly) {
  for (const auto& [ratio, order] : {std::pair(1.53, "stay b"), std::pair(1.57, "hold b")}) {
    TwoJobs jobs({});
    jobs.probe(1.2);
    EXPECT_THAT(jobs.reason, StartsWith("auto: ratios 1.2 and 1.2;"));
    EXPECT_EQ(jobs.steps({0, 1}, ratio * kStep), "stay b");  // the first's ratio is known to have changed
    EXPECT_EQ(jobs.steps({0, 1}, ratio * kStep), order);     // and the second's
  }
}

TEST(PairSharing, ComparesEachJobsStepsWithItsOwnStepTime) {
  TwoJobs jobs({.ratio = 1.2, .second_ratio = 1.3, .second_alone = 2 * kStep, .max_slowdown = 1});
  EXPECT_EQ(jobs.at_once, "start b");
  EXPECT_THAT(jobs.reason, StartsWith("auto: ratios 1.2 and 1.3;"));
  for (int step = 0; step < 50; ++step) {  // both with a ratio of 1.25
    EXPECT_EQ(jobs.step({0}, 1.25 * kStep), "none");
    EXPECT_EQ(jobs.step({0, 1}, 1.25 * kStep), "none");
  }
}

TEST(PairSharing, PlansWithTheSlowdownThatTheBoundAllows) {
  const TwoJobs strong({.ratio = 2, .max_slowdown = 0.05});
  EXPECT_EQ(strong.at_once, "stay b");
  // In 105 s beside the first, the second runs a twentieth of the time at half its speed.
  EXPECT_THAT(strong.reason, HasSubstr("now: 'b' ends at 202.4 s in 1 sub-batches, 'a' at 105 s"));
  const TwoJobs weak({.ratio = 1.1, .max_slowdown = 0.05});
  EXPECT_EQ(weak.at_once, "start b");
  EXPECT_THAT(weak.reason, HasSubstr("now: 'b' ends at 157.3 s in 1 sub-batches, 'a' at 105 s"));
  const TwoJobs only_first({.ratio = 1.1, .second_ratio = 1, .max_slowdown = 0.05});
  EXPECT_THAT(only_first.reason, HasSubstr("now: 'b' ends at 152.5 s in 1 sub-batches, 'a' at 105 s"));
  const TwoJobs none({.ratio = 1.04, .max_slowdown = 0.05});  // keeps the bound by itself
  EXPECT_THAT(none.reason, HasSubstr("now: 'b' ends at 104 s in 1 sub-batches, 'a' at 104 s"));
}

TEST(PairSharing, PlansAgainForAChangeOfMoreThan10PercentOnly) {
  TwoJobs jobs({.ratio = 1.1, .max_slowdown = 1});
  EXPECT_EQ(jobs.steps({0, 1}, 1.09 * 1.1 * kStep, 100), "none");
  TwoJobs slower({.ratio = 1.1, .max_slowdown = 1});
  EXPECT_EQ(slower.steps({0, 1}, 1.12 * 1.1 * kStep, 100), "stay b");
}

TEST(PairSharing, AChangeShowsSoonHoweverManyStepsThereWereBefore) {
  TwoJobs jobs({.ratio = 1.2});
  EXPECT_EQ(jobs.steps({0, 1}, 1.2 * kStep, 600), "none");
  EXPECT_NE(jobs.steps({0, 1}, 2.4 * kStep, 20), "none");
}

TEST(PairSharing, PhasesOfSlowAndFastStepsAreNoChange) {
  TwoJobs jobs({.ratio = 1.2});
  const auto step = [&](bool slow) { return jobs.step({0, 1}, 1.2 * kStep * (slow ? 1.15 : 0.85)); };
  for (int done = 0; done < 40; ++done) {
    EXPECT_EQ(step(done % 2 == 0), "none");
  }
  for (int done = 0; done < 600; ++done) {
    EXPECT_EQ(step(done / 30 % 2 == 0), "none") << done;
  }
}

TEST(PairSharing, AChangeMustShowInEightSteps) {
  TwoJobs jobs({.ratio = 1.1, .max_slowdown = 1});
  EXPECT_EQ(jobs.steps({0, 1}, 1.6 * kStep, 3 + 7), "none");  // the first 3 are warm-up
  EXPECT_EQ(jobs.step({0, 1}, 1.6 * kStep), "stay b");
}

}  // namespace
}  // namespace torchshare
