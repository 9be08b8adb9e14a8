#include "cluster/user_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "fakes/workloads.h"

namespace torchshare {
namespace {

using ::testing::ElementsAre;

TEST(UserShares, WhatIsOneHalfLifeOldCountsHalf) {
  UserShares shares(100, 2);
  shares.advance(1e-6, {1, 0.5});
  const Seconds at_first = shares.use(0);
  EXPECT_NEAR(at_first, 1e-6, 1e-12);
  EXPECT_NEAR(shares.use(1), 0.5e-6, 1e-12);
  shares.advance(100, {0, 0});
  EXPECT_NEAR(shares.use(0), at_first / 2, 1e-15);
  EXPECT_THAT(shares.places(), ElementsAre(1, 0));
  EXPECT_THROW(UserShares(0, 1), std::invalid_argument);
}

TEST(UserShares, OneLongStepCountsAsManyShortOnes) {
  UserShares at_once(50, 1);
  UserShares in_steps(50, 1);
  UserShares undecayed(kNeverVirtual, 1);
  at_once.advance(200, {0.5});
  undecayed.advance(200, {0.5});
  for (int step = 0; step < 1000; ++step) {
    in_steps.advance(0.2, {0.5});
  }
  EXPECT_NEAR(at_once.use(0), in_steps.use(0), 1e-9);
  EXPECT_DOUBLE_EQ(undecayed.use(0), 100);
}

/// Without sharing.
Simulator two_users(std::string_view policy, const ClusterOptions& options, const std::vector<WorkloadJob>& workload) {
  return simulator_of(policy, options, Interference(Interference::kNeverShares), workload);
}

TEST(Fairness, TheUserWithLeastUseComesFirst) {
  const std::vector<WorkloadJob> workload{
      {.duration = 100}, {.duration = 100}, {.duration = 100}, {.arrival = 50, .duration = 100, .user = 1}};
  for (const Seconds half_life : {0.0, 1000.0}) {
    Simulator simulator = two_users("fifo", {.gpus = 1, .gpus_per_node = 1, .fair_half_life = half_life}, workload);
    while (simulator.step()) {
    }
    EXPECT_EQ(simulator.cluster().job(3).ended, half_life > 0 ? 200 : 400);
    EXPECT_EQ(simulator.cluster().job(1).ended, half_life > 0 ? 300 : 200);
  }
}

TEST(Fairness, TheDominantShareIsOfMemoryIfThatIsGreater) {
  // Two users share the GPU: half of it each, but the first has three quarters of its memory. Then each has one job.
  for (const double limit : {16.0, 0.0}) {
    const ClusterOptions options{
        .gpus = 1, .gpus_per_node = 1, .gpu_memory_gib = limit, .fair_half_life = kNeverVirtual};
    const std::vector<WorkloadJob> workload{{.duration = 100, .memory_gib = 12, .user = 0},
                                            {.duration = 100, .memory_gib = 4, .user = 1},
                                            {.arrival = 1, .duration = 50, .group = kAlone, .user = 0},
                                            {.arrival = 1, .duration = 50, .group = kAlone, .user = 1}};
    EXPECT_THAT(ends_of("sjf-ffs", options, Interference(1), workload),
                limit > 0 ? ElementsAre(100, 100, 200, 150) : ElementsAre(100, 100, 150, 200));
  }
}

class FairPolicies : public ::testing::TestWithParam<std::string_view> {};

TEST_P(FairPolicies, TwoUsersWhoAlwaysWaitGetAlike) {
  // The first has nine jobs in ten.
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> duration(50, 500);
  std::vector<WorkloadJob> workload;
  for (int i = 0; i < 1000; ++i) {
    workload.push_back({.duration = duration(random), .gpus = 1 << random() % 3, .user = i % 10 == 0 ? 1 : 0});
  }
  const auto share_of_second = [&](Seconds half_life) {
    Simulator simulator = two_users(GetParam(), {.gpus = 8, .fair_half_life = half_life}, workload);
    while (simulator.cluster().now() < 5000 && simulator.step()) {
    }
    double all = 0;
    double second = 0;
    for (JobId job = 0; job < workload.size(); ++job) {
      const double used = simulator.cluster().attained(job);
      all += used;
      second += workload[job].user == 1 ? used : 0;
    }
    return second / all;
  };
  EXPECT_NEAR(share_of_second(3600), 0.5, 0.12);
  EXPECT_LT(share_of_second(0), 0.3);
}

TEST_P(FairPolicies, EveryJobEndsOnce) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<WorkloadJob> workload = random_workload(random, 25, 8, 1);
    for (WorkloadJob& job : workload) {
      job.user = static_cast<int>(random() % 4);
    }
    const Predecessors after = random_predecessors(random, workload.size());
    const ClusterOptions options{.gpus = 8,
                                 .gpu_memory_gib = 16,
                                 .restart_cost = 10,
                                 .checkpoint_every = 30,
                                 .fair_half_life = 500.0 * (1 + seed % 3)};
    const Failures failures({.between = 300, .repair = 100, .seed = seed}, options.gpus, options.gpus_per_node);
    Simulator simulator(Cluster(options, Interference(1.2), workload, durations_of(workload)),
                        make_cluster_policy(GetParam()), {.after = after, .failures = failures});
    for (int steps = 0; simulator.step(); ++steps) {
      ASSERT_LT(steps, 100'000) << "seed " << seed << " goes on for ever";
      for (JobId job = 0; job < workload.size(); ++job) {
        ASSERT_EQ(simulator.cluster().job(job).rank.user, 0) << "the place of a user changes while its jobs wait";
      }
    }
    for (JobId job = 0; job < workload.size(); ++job) {
      const ClusterJob& entry = simulator.cluster().job(job);
      ASSERT_EQ(entry.phase, JobPhase::kEnded) << "seed " << seed;
      ASSERT_NEAR(entry.waited + entry.run, entry.ended - entry.eligible, 1e-6) << "seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FairPolicies, ::testing::ValuesIn(cluster_policy_names()), [](const auto& info) {
  std::string name(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace torchshare
