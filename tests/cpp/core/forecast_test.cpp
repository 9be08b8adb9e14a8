#include "cluster/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fakes/workloads.h"

namespace torchshare {
namespace {

/// Gives each job a deadline of 1.1 to 3 times its duration, but for one in `without`, if that is not 0.
void add_deadlines(std::mt19937_64& random, std::vector<WorkloadJob>& workload, unsigned without) {
  std::uniform_real_distribution<double> factor(1.1, 3);
  for (WorkloadJob& job : workload) {
    job.deadline = without > 0 && random() % without == 0 ? kNeverVirtual : factor(random) * job.duration;
  }
}

class DeadlinePolicies : public ::testing::TestWithParam<std::string_view> {};

TEST_P(DeadlinePolicies, NoAcceptedJobIsLateIfDurationsAreKnown) {
  int accepted = 0;
  int rejected = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    const ClusterOptions options{.gpus = 4,
                                 .gpus_per_node = 4,
                                 .gpu_memory_gib = seed % 2 == 0 ? 16.0 : 0.0,
                                 .restart_cost = static_cast<double>(seed % 3) * 10};
    const Interference interference(2, {1 + static_cast<double>(seed % 11) / 10, 1.3, 2, 1.1});
    std::vector<WorkloadJob> workload = random_workload(random, 2 + static_cast<int>(seed % 40), options.gpus, 2);
    add_deadlines(random, workload, seed % 4);
    Simulator simulator = simulator_of(GetParam(), options, interference, workload);
    while (simulator.step()) {
    }
    for (JobId job = 0; job < workload.size(); ++job) {
      const ClusterJob& entry = simulator.cluster().job(job);
      if (entry.phase == JobPhase::kRejected) {
        ASSERT_TRUE(simulator.cluster().has_deadline(job)) << "seed " << seed;
        ASSERT_EQ(entry.run, 0);
        ++rejected;
        continue;
      }
      ASSERT_EQ(entry.phase, JobPhase::kEnded) << "seed " << seed;
      ASSERT_NEAR(entry.waited + entry.run, entry.ended - workload[job].arrival, 1e-6) << "seed " << seed;
      ASSERT_TRUE(simulator.cluster().in_time(job, entry.ended))
          << "seed " << seed << ", job " << job << " ended at " << entry.ended << " instead of "
          << simulator.cluster().due(job);
      ++accepted;
    }
  }
  EXPECT_GT(accepted, 10'000);
  EXPECT_GT(rejected, 1'000);
}

INSTANTIATE_TEST_SUITE_P(All, DeadlinePolicies, ::testing::Values("edf", "pair-edf"), [](const auto& info) {
  return info.param == "edf" ? std::string("edf") : std::string("pair_edf");
});

}  // namespace
}  // namespace torchshare
