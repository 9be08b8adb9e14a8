#include "sharing/auto_sharing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "model/pair.h"

namespace torchshare {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Action = AutoSharing::Action;

/// The behaviour of a job in the simulated world.
struct Behaviour {
  double step;  // seconds alone
  int steps;
  double ratio = 1;  // beside another
  double arrives = 0;
  bool automatic = true;
  bool declared = true;  // its number of steps
  std::optional<ProfiledJob> profile = {};
  double set_up = 0;                                              // seconds before its first step
  int fails_after = 1 << 30;                                      // steps
  std::function<double(int)> slowness = [](int) { return 1.0; };  // factor on the time of the i-th step
  std::function<double(int)> suffers = [](int) { return 1.0; };   // factor on the ratio in the i-th step
};

std::chrono::nanoseconds at(Seconds time) {
  return std::chrono::nanoseconds(std::llround(1e9 * time));
}

/// Jobs in virtual time, directed by AutoSharing. A job beside another is slowed by its ratio.
class World {
 public:
  World(std::vector<Behaviour> jobs, std::optional<double> bound = {}, double noise = 0)
      : sharing(bound), noise_(noise), jobs_(jobs.begin(), jobs.end()) {}

  struct Job : Behaviour {
    explicit Job(const Behaviour& behaviour) : Behaviour(behaviour) {}
    bool arrived = false;
    bool runs = false;
    bool ended = false;
    int done = 0;
    double left = 0;  // of the current step, in seconds alone
    double end = 0;
    double ran_alone = 0;
  };

  void run() {
    double now = 0;
    while (std::any_of(jobs_.begin(), jobs_.end(), [](const Job& job) { return !job.ended; })) {
      arrivals(now);
      obey(now);
      double next = sharing.retry_at() == kNever ? kNeverVirtual : to_seconds(sharing.retry_at());
      for (const Job& job : jobs_) {
        if (!job.arrived) {
          next = std::min(next, job.arrives);
        } else if (job.runs) {
          next = std::min(next, now + job.left * slowdown(job));
        }
      }
      ASSERT_LT(next, kNeverVirtual) << "no job runs and no event is pending";
      ASSERT_LT(++turns_, 2'000'000) << "it does not end";
      const double passed = std::max(next, now) - now;
      now += passed;
      for (std::size_t id = 0; id < jobs_.size(); ++id) {
        advance(static_cast<JobId>(id), passed, now);
      }
    }
  }

  double jct(std::size_t id) const { return jobs_[id].end - jobs_[id].arrives; }
  double average() const { return (jct(0) + jct(1)) / 2; }
  const std::vector<AutoSharing::Order>& orders() const { return orders_; }
  int count(JobId id, Action action) const {
    return static_cast<int>(std::count_if(
        orders_.begin(), orders_.end(), [&](const auto& order) { return order.job == id && order.action == action; }));
  }
  std::vector<std::string> reasons() const {
    std::vector<std::string> found;
    for (const auto& order : orders_) {
      found.push_back(order.reason);
    }
    return found;
  }

  AutoSharing sharing;

 private:
  double slowdown(const Job& job) const {
    const auto running = std::count_if(jobs_.begin(), jobs_.end(), [](const Job& other) { return other.runs; });
    return running > 1 ? job.ratio * job.suffers(job.done) : 1.0;
  }
  void begin_step(Job& job) {
    std::lognormal_distribution<double> factor(-noise_ * noise_ / 2, noise_);
    job.left = job.step * job.slowness(job.done) * (noise_ > 0 ? factor(random_) : 1.0);
  }
  void begin(JobId id, double now, bool tell) {
    Job& job = jobs_[id];
    job.runs = true;
    job.left = job.set_up;
    if (job.set_up == 0) {
      begin_step(job);
    }
    if (tell) {
      sharing.start(id, at(now));
    }
  }
  void arrivals(double now) {
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      Job& job = jobs_[i];
      if (!job.arrived && job.arrives <= now) {
        job.arrived = true;
        SharedJob known{.name = std::string(1, static_cast<char>('a' + i)),
                        .priority = i == 0 ? Priority::kPrimary : Priority::kSecondary,
                        .automatic = job.automatic,
                        .starts_now = !job.automatic,
                        .steps = job.declared ? std::optional<double>(job.steps) : std::nullopt,
                        .profile = job.profile};
        sharing.arrive(static_cast<JobId>(i), std::move(known));
        if (!job.automatic) {
          begin(static_cast<JobId>(i), now, true);
        }
      }
    }
  }
  void obey(double now) {
    for (AutoSharing::Order& order : sharing.decide(at(now))) {
      if (order.action == Action::kStart) {
        begin(order.job, now, false);
      } else if (order.action != Action::kStay) {
        jobs_[order.job].runs = order.action == Action::kRelease;
      }
      orders_.push_back(std::move(order));
    }
  }
  void advance(JobId id, double passed, double now) {
    Job& job = jobs_[id];
    if (!job.runs) {
      return;
    }
    job.left -= passed / slowdown(job);
    if (job.left > 1e-12) {
      return;
    }
    const bool was_step = job.set_up == 0 || std::exchange(job.set_up, 0.0) == 0;
    if (was_step) {
      ++job.done;
      sharing.step(id, at(now));
    }
    if (job.done >= job.steps || job.done >= job.fails_after) {
      job.runs = false;
      job.ended = true;
      job.end = now;
      sharing.end(id);
    } else {
      begin_step(job);
    }
  }

  const double noise_;
  std::vector<Job> jobs_;
  std::vector<AutoSharing::Order> orders_;
  std::mt19937 random_{1};
  int turns_ = 0;
};

ProfiledJob profile(const std::string& name, double step, const std::string& other = {}, double own = 1,
                    double others = 1) {
  ProfiledJob profile{name, step};
  if (!other.empty()) {
    profile.beside[other] = {own, others, {}};
  }
  return profile;
}

/// The best of: now, one after the other, the second first.
double best_in_hindsight(const Behaviour& a, const Behaviour& b) {
  const PairJob first{a.step * a.steps, a.ratio};
  const PairJob second{b.step * b.steps, b.ratio};
  return std::min({share_now(first, second), one_after_other(first, second), one_after_other(second, first)});
}

struct Case {
  const char* name;
  Behaviour a;
  Behaviour b;
};

class EveryPair : public ::testing::TestWithParam<Case> {};

TEST_P(EveryPair, IsAsGoodAsInHindsightWithProfiles) {
  auto [name, a, b] = GetParam();
  a.profile = profile("pa", a.step, "pb", a.ratio, b.ratio);
  b.profile = profile("pb", b.step);
  World world({a, b}, {}, 0.02);
  world.run();
  EXPECT_LE(world.average(), 1.05 * best_in_hindsight(a, b));
}

TEST_P(EveryPair, IsNearlyAsGoodAfterAProbe) {
  const auto [name, a, b] = GetParam();
  World world({a, b}, {}, 0.05);
  world.run();
  EXPECT_LE(world.average(), 1.08 * best_in_hindsight(a, b));
}

INSTANTIATE_TEST_SUITE_P(AutoSharing, EveryPair,
                         ::testing::Values(Case{"no interference", {0.02, 600}, {0.03, 500}},
                                           Case{"strong", {0.02, 600, 2.0}, {0.02, 700, 2.0}},
                                           Case{"starved secondary", {0.02, 600, 1.02}, {0.02, 600, 8.0}},
                                           Case{"short secondary", {0.05, 1000, 2.0}, {0.01, 300, 2.0}},
                                           Case{"short primary", {0.01, 300, 1.9}, {0.05, 1000, 1.9}},
                                           Case{
                                               "short secondary that shares well", {0.05, 1000, 1.1}, {0.01, 300, 1.1}},
                                           Case{"at the border", {0.02, 600, 1.5}, {0.02, 600, 1.5}}),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

TEST(AutoSharing, ForgetsJobsThatHaveEnded) {
  AutoSharing sharing({});
  for (JobId id = 0; id < 200; ++id) {
    sharing.arrive(id, {.name = std::to_string(id), .automatic = true});
    sharing.decide(at(id));
    sharing.step(id, at(id + 0.5));
    sharing.decide(at(id + 0.5));
    if (id > 0) {
      sharing.end(id - 1);
    }
    ASSERT_LE(sharing.size(), 1U) << "one job, and no pair";
  }
  sharing.end(199);
  sharing.arrive(200, {.name = "last", .automatic = true});
  EXPECT_EQ(sharing.decide(at(300)).size(), 1U) << "it starts: nothing else runs";
}

TEST(AutoSharing, ProbesThenSuspendsTheSecondaryUntilThePrimaryIsDone) {
  World world({{0.02, 600, 2.0, 0, false}, {0.02, 700, 2.0}}, {}, 0.02);
  world.run();
  EXPECT_EQ(world.count(1, Action::kHold), 1 + 0);
  EXPECT_NEAR(world.jct(0), 600 * 0.02, 600 * 0.02 * 0.05);
  EXPECT_THAT(world.reasons(), Contains(HasSubstr("probe: steps of both")));
  EXPECT_THAT(world.reasons(), Contains(HasSubstr("after: 'b' ends at")));
  EXPECT_THAT(world.reasons(), Contains(HasSubstr("its partner has ended")));
}

TEST(AutoSharing, SwapsForAShortSecondary) {
  World world({{0.05, 1000, 2.0, 0, false}, {0.01, 300, 2.0}});
  world.run();
  EXPECT_LT(world.jct(1), 1.2 * 300 * 0.01);
  EXPECT_GT(world.count(0, Action::kHold), 0);
}

TEST(AutoSharing, NeverHoldsAJobThatIsBounded) {
  World world({{0.05, 1000, 2.0, 0, false}, {0.01, 300, 2.0}}, 0.05);
  world.run();
  EXPECT_EQ(world.count(0, Action::kHold), 0);
  EXPECT_EQ(world.count(1, Action::kStart), 1);
}

TEST(AutoSharing, StartsWithTheProfilesAloneAndProbesNothing) {
  Behaviour a{0.02, 600, 1.1, 0, false};
  Behaviour b{0.02, 600, 1.1};
  a.profile = profile("pa", 0.02);
  b.profile = profile("pb", 0.02, "pa", 1.1, 1.1);  // measured in b's profile
  World world({a, b});
  world.run();
  ASSERT_EQ(world.orders().size(), 1U);
  EXPECT_THAT(world.orders()[0].reason, HasSubstr("ratios 1.1 and 1.1; after:"));
}

TEST(AutoSharing, ProbesIfAProfileLacksTheOther) {
  Behaviour a{0.02, 600, 1.1, 0, false};
  Behaviour b{0.02, 600, 1.1};
  a.profile = profile("pa", 0.02, "px", 2, 2);
  b.profile = profile("pb", 0.02);
  World world({a, b});
  world.run();
  EXPECT_THAT(world.reasons(), Contains(HasSubstr("probe")));
}

TEST(AutoSharing, TheProbeTakesAtMostItsShareOfNoisyJobs) {
  // Too noisy for an exact ratio: the probe must end after its share of the work.
  World world({{0.02, 2000, 2.0, 0, false}, {0.02, 2000, 2.0}}, {}, 1.0);
  world.run();
  const double best = one_after_other({40, 2}, {40, 2});
  EXPECT_LE(world.average(), 1.12 * best);
}

TEST(AutoSharing, FindsOutThatAProfileIsWrong) {
  Behaviour a{0.02, 1000, 2.0, 0, false};
  Behaviour b{0.02, 1000, 2.0};
  a.profile = profile("pa", 0.02, "pb", 1.0, 1.0);
  b.profile = profile("pb", 0.02);
  World world({a, b});
  world.run();
  EXPECT_GE(world.count(1, Action::kHold), 1);
  EXPECT_LE(world.average(), 1.05 * best_in_hindsight(a, b));
}

TEST(AutoSharing, AdaptsWhenAnInputStallIsOver) {
  // The primary waits for input at first, and shares well; then it computes, and shares badly.
  Behaviour a{0.02, 1200, 2.0, 0, false};
  a.slowness = [](int step) { return step < 200 ? 4.0 : 1.0; };
  a.suffers = [](int step) { return step < 200 ? 0.5 : 1.0; };
  World world({a, {0.02, 3000, 2.0}});
  world.run();
  EXPECT_GE(world.count(1, Action::kHold), 1);
}

TEST(AutoSharing, DoesNotFlapAtTheBorder) {
  World world({{0.02, 3000, 1.5, 0, false}, {0.02, 3000, 1.5}}, {}, 0.1);
  world.run();
  EXPECT_LE(world.orders().size(), 8U);
}

TEST(AutoSharing, LetsTheOtherInWhileThePrimaryStallsAndHoldsItAgain) {
  Behaviour a{0.02, 600, 2.0, 0, false};
  a.slowness = [](int step) { return step == 300 ? 1500.0 : 1.0; };  // 30 s
  a.profile = profile("pa", 0.02, "pb", 2.0, 2.0);
  Behaviour b{0.02, 800, 2.0};
  b.profile = profile("pb", 0.02);
  World world({a, b});
  world.run();
  EXPECT_THAT(world.reasons(), Contains(HasSubstr("'a' has not ended a step for 1 s")));
  EXPECT_LT(world.jct(1), 16 + 12 + 30);  // it used the stall
}

TEST(AutoSharing, SharesTheSetUpOfASlowStarter) {
  Behaviour a{0.02, 600, 2.0, 0, false};
  a.set_up = 5;
  World world({a, {0.02, 600, 2.0}});
  world.run();
  EXPECT_THAT(world.reasons(), Contains(HasSubstr("has not ended a step")));
}

TEST(AutoSharing, DecidesThoughEveryStepIsLongerThanAStall) {
  World world({{3.0, 100, 2.0, 0, false}, {3.0, 120, 2.0}});
  world.run();
  EXPECT_THAT(world.reasons(), Contains(HasSubstr("ratios 2 and 2")));
  EXPECT_LE(world.orders().size(), 16U);
}

TEST(AutoSharing, CountsNoStepsWhileTheUserHasTheOtherSuspended) {
  AutoSharing sharing({});
  sharing.arrive(0, {.name = "a", .starts_now = true, .steps = 1000});
  sharing.arrive(1, {.name = "b", .automatic = true, .steps = 1000});
  double now = 0;
  const auto steps = [&](JobId id, int count, double time) {
    std::vector<AutoSharing::Order> all;
    for (int i = 0; i < count; ++i) {
      sharing.step(id, at(now += time));
      for (AutoSharing::Order& order : sharing.decide(at(now))) {
        all.push_back(std::move(order));
      }
    }
    return all;
  };
  sharing.start(0, at(now));
  ASSERT_EQ(steps(0, 20, 0.1).back().job, 1U);  // the probe of the first is over, both run
  sharing.suspend(0, true, at(now));
  EXPECT_TRUE(steps(1, 100, 0.1).empty());  // nothing measured of the two together
  sharing.suspend(0, false, at(now));
}

TEST(AutoSharing, AJobThatEndsOrFailsInTheProbeLeavesTheOtherRunning) {
  for (const int first_fails : {1, 5, 9, 12, 20}) {
    Behaviour a{0.02, 600, 2.0, 0, false};
    a.fails_after = first_fails;
    World world({a, {0.02, 600, 2.0}});
    world.run();
    EXPECT_LE(world.jct(1), first_fails * 0.04 + 600 * 0.02 + 0.1);
  }
  for (const int second_ends : {1, 5, 9, 12, 20}) {
    World world({{0.02, 600, 2.0, 0, false}, {0.02, second_ends, 2.0}});
    world.run();
    EXPECT_LE(world.jct(0), 600 * 0.02 + second_ends * 0.04);
  }
}

TEST(AutoSharing, HandlesUnknownLengths) {
  for (const double ratio : {1.05, 2.0}) {
    Behaviour a{0.02, 600, ratio, 0, false, false};
    Behaviour b{0.02, 600, ratio, 0, true, false};
    World world({a, b});
    world.run();
    EXPECT_LE(world.average(), 1.10 * best_in_hindsight(a, b));
  }
}

TEST(AutoSharing, TakesThePassOverTheLoaderAsALowerBound) {
  AutoSharing sharing({});
  sharing.arrive(0, {.name = "a"});
  sharing.start(0, at(0));
  sharing.expect(0, 100, false);
  EXPECT_TRUE(sharing.decide(at(1)).empty());
}

TEST(AutoSharing, PlansWithoutTheStepsBeforeAResume) {
  const auto decision = [](double declared, double done) {
    AutoSharing sharing({});
    sharing.arrive(0, {.name = "a", .steps = declared, .profile = profile("pa", 0.02, "pb", 1.5, 1.5)});
    sharing.arrive(1, {.name = "b", .automatic = true, .steps = 600, .profile = profile("pb", 0.02)});
    sharing.start(0, at(0));
    sharing.go_on(0, done);
    return sharing.decide(at(1)).back().reason;
  };
  EXPECT_EQ(decision(1000, 990), decision(10, 0));
  EXPECT_NE(decision(1000, 990), decision(1000, 0));
}

TEST(AutoSharing, HandlesNoRemainingWork) {
  Behaviour a{0.02, 5, 1.1, 0, false};
  Behaviour b{0.02, 600, 1.1};
  a.profile = profile("pa", 0.02, "pb", 1.1, 1.1);
  b.profile = profile("pb", 0.02);
  a.steps = 0;  // does one step nevertheless
  World world({a, b});
  world.run();
  EXPECT_LE(world.jct(1), 600 * 0.02 + 0.1);
}

TEST(AutoSharing, RunsThreeJobsTwoAtATime) {
  std::vector<Behaviour> jobs(4, {0.02, 300, 1.1});
  World world(jobs);
  world.run();
  int running = 0;
  for (const auto& order : world.orders()) {
    running += order.action == Action::kStart ? 1 : 0;
  }
  EXPECT_EQ(running, 4);
  EXPECT_LT(world.jct(3), 4 * 300 * 0.02 * 0.75);
}

TEST(AutoSharing, DecidesAgainWhenAJobArrives) {
  Behaviour late{0.02, 300, 1.1, 5.0};
  World world({{0.02, 600, 1.1, 0, false}, late});
  world.run();
  EXPECT_LT(world.jct(1), 1.3 * 300 * 0.02);
}

TEST(AutoSharing, LeavesManuallyStartedJobsAlone) {
  World world({{0.02, 300, 2, 0, false}, {0.02, 300, 2, 0, false}, {0.02, 10, 2}});
  world.run();
  EXPECT_EQ(world.count(0, Action::kHold) + world.count(1, Action::kHold), 0);
}

TEST(AutoSharing, WaitsForAJobThatIsAboutToStart) {
  AutoSharing sharing({});
  sharing.arrive(0, {.name = "a", .starts_now = true});
  sharing.arrive(1, {.name = "b", .automatic = true});
  EXPECT_TRUE(sharing.decide(at(0)).empty());
  sharing.end(0);  // cancelled before it started
  EXPECT_EQ(sharing.decide(at(0)).size(), 1U);
}

TEST(AutoSharing, StartsNoMoreJobsThanThereArePlaces) {
  AutoSharing sharing({});
  sharing.arrive(0, {.name = "a", .automatic = true, .profile = profile("pa", 0.1, "pb", 1.0, 1.0)});
  sharing.arrive(1, {.name = "b", .automatic = true, .profile = profile("pb", 0.1)});
  EXPECT_TRUE(sharing.decide(at(0), 0).empty());
  EXPECT_EQ(sharing.decide(at(0), 1).size(), 1U);
  EXPECT_TRUE(sharing.decide(at(0), 0).empty());
  EXPECT_EQ(sharing.decide(at(0), 1).size(), 1U);
}

TEST(AutoSharing, StartsTheFirstWaitingJobThatSharesWell) {
  AutoSharing sharing({});
  ProfiledJob running = profile("pa", 0.1, "pb", 2.0, 2.0);
  running.beside["pc"] = running.beside["pd"] = {1.0, 1.0};
  sharing.arrive(0, {.name = "a", .starts_now = true, .steps = 100, .profile = running});
  sharing.arrive(1, {.name = "b", .automatic = true, .steps = 1000, .profile = profile("pb", 0.1)});
  sharing.arrive(2, {.name = "c", .automatic = true, .steps = 1000, .profile = profile("pc", 0.1)});
  sharing.arrive(3, {.name = "d", .automatic = true, .steps = 1000, .profile = profile("pd", 0.1)});
  sharing.start(0, at(0));
  const auto orders = sharing.decide(at(0));
  ASSERT_EQ(orders.size(), 2U);
  EXPECT_EQ(orders.front().job, 1U);
  EXPECT_EQ(orders.front().action, Action::kStay);
  EXPECT_EQ(orders.back().job, 2U);
  EXPECT_EQ(orders.back().action, Action::kStart);
}

TEST(AutoSharing, AJobBesideOneThatAnswersRequestsStartsAtTheFirstAnswer) {
  AutoSharing sharing({});
  sharing.arrive(0, {.name = "server", .priority = Priority::kPrimary, .starts_now = true});
  sharing.arrive(1, {.name = "train", .automatic = true, .steps = 1000});
  sharing.start(0, at(0));
  EXPECT_TRUE(sharing.decide(at(0.1)).empty());
  sharing.answer(0, at(0.2));
  auto orders = sharing.decide(at(0.2));
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders.front().action, Action::kStart);
  EXPECT_EQ(orders.front().reason, "auto: 'server' answers requests; 'train' runs beside it");
  for (int i = 1; i < 1000; ++i) {
    sharing.step(1, at(0.2 + 0.01 * i));
    orders = sharing.decide(at(0.2 + 0.01 * i));
    EXPECT_TRUE(orders.empty());
  }
}

ProfiledJob server_profile(std::optional<double> share) {
  ProfiledJob server = profile("ps", 0.01, "pt", 1.5, 1.2);
  server.answers = true;
  server.beside["pt"].share = share;
  return server;
}

TEST(AutoSharing, AProfileOfRequestsSaysHowMuchOfTheTimeIsLeftAndAJobWithoutAnyWaits) {
  for (const double share : {0.34, 0.0}) {
    AutoSharing sharing({});
    sharing.arrive(
        0, {.name = "server", .priority = Priority::kPrimary, .starts_now = true, .profile = server_profile(share)});
    sharing.arrive(1, {.name = "train", .automatic = true, .steps = 1000, .profile = profile("pt", 0.01)});
    sharing.start(0, at(0));
    auto orders = sharing.decide(at(0.1));
    ASSERT_EQ(orders.size(), 1U);
    EXPECT_EQ(orders.front().job, 1U);
    EXPECT_EQ(orders.front().action, share == 0 ? Action::kStay : Action::kStart);
    EXPECT_EQ(orders.front().reason, share == 0
                                         ? "auto: 'server' keeps its promise beside no share of 'train'"
                                         : "auto: 'server' keeps its promise while 'train' runs for 34 % of the time");
    EXPECT_TRUE(sharing.decide(at(0.2)).empty());
  }
}

TEST(AutoSharing, AJobThatWaitsForAServerRunsWhileNobodyAsksThat) {
  AutoSharing sharing({});
  sharing.arrive(0,
                 {.name = "server", .priority = Priority::kPrimary, .starts_now = true, .profile = server_profile(0)});
  sharing.arrive(1, {.name = "train", .automatic = true, .steps = 1000, .profile = profile("pt", 0.01)});
  sharing.start(0, at(0));
  sharing.answer(0, at(0.5));
  EXPECT_EQ(sharing.decide(at(1)).front().action, Action::kStay);
  EXPECT_TRUE(sharing.decide(at(2)).empty());
  auto orders = sharing.decide(at(6));
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders.front().action, Action::kStart);
  EXPECT_EQ(orders.front().reason, "auto: 'server' has not answered a request for 5.5 s");
  sharing.answer(0, at(7));
  orders = sharing.decide(at(7));
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders.front().action, Action::kHold);
}

TEST(AutoSharing, AServerOfLowerPriorityHoldsNobody) {
  AutoSharing sharing({});
  sharing.arrive(0, {.name = "train",
                     .priority = Priority::kPrimary,
                     .starts_now = true,
                     .steps = 1000,
                     .profile = profile("pt", 0.01)});
  sharing.arrive(1, {.name = "server", .automatic = true, .profile = server_profile(0)});
  sharing.start(0, at(0));
  const auto orders = sharing.decide(at(0));
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders.front().job, 1U);
  EXPECT_EQ(orders.front().action, Action::kStart);
}

TEST(AutoSharing, StartsTheOtherWhileTheUserHasOneSuspended) {
  AutoSharing sharing({});
  sharing.arrive(0, {.name = "a", .starts_now = true, .steps = 100, .profile = profile("pa", 0.1, "pb", 2.0, 2.0)});
  sharing.arrive(1, {.name = "b", .automatic = true, .steps = 1000, .profile = profile("pb", 0.1)});
  sharing.start(0, at(0));
  EXPECT_EQ(sharing.decide(at(0)).front().action, Action::kStay);
  sharing.suspend(0, true, at(1));
  auto orders = sharing.decide(at(1));
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders.front().action, Action::kStart);
  EXPECT_EQ(orders.front().reason, "auto: 'a' was suspended by hand");
  sharing.suspend(0, false, at(100));  // not stalled since
  orders = sharing.decide(at(100));
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders.front().job, 1U);
  EXPECT_EQ(orders.front().action, Action::kHold);
}

TEST(AutoSharing, SurvivesAClockThatStandsStillOrJumps) {
  AutoSharing sharing({});
  sharing.arrive(0, {.name = "a", .starts_now = true, .steps = 1000});
  sharing.arrive(1, {.name = "b", .automatic = true, .steps = 1000});
  sharing.start(0, at(0));
  double now = 0;
  for (int i = 0; i < 900; ++i) {
    now += i == 300 ? 3600 : 0;
    sharing.step(0, at(now));
    sharing.step(1, at(now));
    EXPECT_NO_THROW(sharing.decide(at(now)));
  }
}

TEST(AutoSharing, RefusesInvalidProfiles) {
  AutoSharing sharing({});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT([&] { sharing.arrive(0, {.name = "a", .profile = profile("p", -1)}); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("job 'a': step time of its profile must be a positive number, got -1")));
  EXPECT_THAT(
      [&] { sharing.arrive(0, {.name = "a", .profile = profile("p", 1, "q", nan, 1)}); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("job 'a': ratio beside q must be a positive number, got nan")));
  for (const double steps : {-3.0, HUGE_VAL, nan}) {
    EXPECT_THAT([&] { sharing.arrive(0, {.name = "a", .steps = steps}); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("job 'a': steps must be at least 0, got ")));
  }
}

}  // namespace
}  // namespace torchshare
