#include "cluster/dependencies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "fakes/workloads.h"

namespace torchshare {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

std::vector<Seconds> ends_after(std::string_view policy, int gpus, const std::vector<WorkloadJob>& workload,
                                const Predecessors& after) {
  const ClusterOptions options{.gpus = gpus, .gpus_per_node = gpus, .restart_cost = 0};
  Simulator simulator(Cluster(options, Interference(2), workload, durations_of(workload)), make_cluster_policy(policy),
                      {.after = after});
  while (simulator.step()) {
  }
  std::vector<Seconds> ends;
  for (JobId job = 0; job < workload.size(); ++job) {
    ends.push_back(simulator.cluster().job(job).ended);
  }
  return ends;
}

TEST(Dependencies, AJobWaitsForItsPredecessorsAndItsArrival) {
  const std::vector<WorkloadJob> workload{
      {.duration = 100}, {.duration = 50}, {.arrival = 10, .duration = 20}, {.arrival = 300, .duration = 5}};
  EXPECT_THAT(ends_after("fifo", 4, workload, {{}, {}, {0, 1}, {0}}), ElementsAre(100, 50, 120, 305));
  EXPECT_THAT(ends_after("fifo", 4, workload, {}), ElementsAre(100, 50, 30, 305));
}

TEST(Dependencies, APredecessorMayArriveLaterAndEndAtTheArrival) {
  const std::vector<WorkloadJob> workload{
      {.duration = 10}, {.arrival = 60, .duration = 40}, {.arrival = 100, .duration = 1}};
  EXPECT_THAT(ends_after("fifo", 4, workload, {{1}, {}, {1, 1}}), ElementsAre(110, 100, 101));
}

TEST(Dependencies, JobsThatBecomeEligibleTogetherAreRankedTogether) {
  // Both become eligible at 10; the shorter one comes first, although the other has the lower number.
  const std::vector<WorkloadJob> workload{{.duration = 10}, {.duration = 100}, {.arrival = 10, .duration = 50}};
  EXPECT_THAT(ends_after("sjf", 1, workload, {{}, {0}, {}}), ElementsAre(10, 160, 60));
  EXPECT_THAT(ends_after("fifo", 1, workload, {{}, {0}, {}}), ElementsAre(10, 110, 160)) << "by arrival";
}

TEST(Dependencies, AJobBehindARejectedOneNeverRuns) {
  const std::vector<WorkloadJob> workload{{.duration = 100, .deadline = 50},
                                          {.duration = 10},
                                          {.duration = 10, .deadline = 1000},
                                          {.arrival = 40, .duration = 10}};
  EXPECT_THAT(ends_after("edf", 1, workload, {{}, {0}, {1, 0}, {}}),
              ElementsAre(kNeverVirtual, kNeverVirtual, kNeverVirtual, 50));
}

TEST(Dependencies, ADeadlineCountsFromTheArrivalAndIsCheckedWhenTheJobIsEligible) {
  const std::vector<WorkloadJob> workload{{.duration = 100}, {.duration = 50, .deadline = 150}};
  EXPECT_THAT(ends_after("edf", 1, workload, {{}, {0}}), ElementsAre(100, 150));
  const std::vector<WorkloadJob> tight{{.duration = 100}, {.duration = 50, .deadline = 149}};
  EXPECT_THAT(ends_after("edf", 1, tight, {{}, {0}}), ElementsAre(100, kNeverVirtual));
}

TEST(Dependencies, RefusesCyclesAndUnknownJobs) {
  const auto message = [](const std::string& text) { return ThrowsMessage<std::invalid_argument>(HasSubstr(text)); };
  EXPECT_THAT([] { Dependencies({{1}, {2}, {1}}, 3); }, message("must not wait for each other, got 1 after 2"));
  EXPECT_THAT([] { Dependencies({{}, {3}, {}}, 3); }, message("job 1 waits for job 3"));
  EXPECT_THAT([] { Dependencies({{}}, 2); }, message("one entry per job, got 1 for 2 jobs"));
}

/// Whether the jobs can all be taken one by one, each after those that it waits for.
bool can_be_ordered(const Predecessors& after) {
  std::vector<bool> taken(after.size());
  const auto is_taken = [&](JobId job) { return taken[job]; };
  for (std::size_t round = 0; round < after.size(); ++round) {
    for (JobId job = 0; job < after.size(); ++job) {
      taken[job] = taken[job] || std::all_of(after[job].begin(), after[job].end(), is_taken);
    }
  }
  return std::all_of(taken.begin(), taken.end(), [](bool each) { return each; });
}

TEST(Dependencies, FindsACycleExactlyIfThereIsNoOrder) {
  int cycles = 0;
  for (unsigned seed = 0; seed < 5000; ++seed) {
    std::mt19937_64 random(seed);
    Predecessors after = random_predecessors(random, 1 + seed % 12);
    for (unsigned more = random() % 3; more > 0; --more) {
      after[random() % after.size()].push_back(static_cast<JobId>(random() % after.size()));
    }
    const std::vector<JobId> cycle = find_cycle(after);
    ASSERT_EQ(cycle.empty(), can_be_ordered(after)) << "seed " << seed;
    for (std::size_t place = 0; place < cycle.size(); ++place) {
      const std::vector<JobId>& others = after[cycle[place]];
      ASSERT_NE(std::find(others.begin(), others.end(), cycle[(place + 1) % cycle.size()]), others.end());
    }
    cycles += cycle.empty() ? 0 : 1;
  }
  EXPECT_GT(cycles, 1000);
  EXPECT_LT(cycles, 4000);
}

TEST(Dependencies, TheLongestChainBehindAJobIsThatOfAllPaths) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937_64 random(seed);
    const Predecessors after = random_predecessors(random, 1 + seed % 12);
    std::vector<double> work;
    for (std::size_t job = 0; job < after.size(); ++job) {
      work.push_back(1 + static_cast<double>(random() % 100));
    }
    const Dependencies dependencies(after, after.size());
    const std::vector<double> behind = dependencies.longest_behind(work);
    const auto longest = [&](const auto& self, JobId job) -> double {
      double most = 0;
      for (const JobId next : dependencies.successors(job)) {
        most = std::max(most, work[next] + self(self, next));
      }
      return most;
    };
    for (JobId job = 0; job < after.size(); ++job) {
      ASSERT_EQ(behind[job], longest(longest, job)) << "seed " << seed;
    }
  }
}

TEST(Dependencies, PairSrsfRanksByTheWorkOfTheCriticalPathIfToldSo) {
  // The first is short, but 500 s of work wait for it.
  const std::vector<WorkloadJob> workload{{.duration = 10}, {.duration = 100}, {.duration = 500}};
  const Predecessors after{{}, {}, {0}};
  for (const bool by_path : {false, true}) {
    const ClusterOptions options{.gpus = 1, .gpus_per_node = 1, .rank_by_path = by_path};
    const Interference never(Interference::kNeverShares);
    Simulator simulator(Cluster(options, never, workload, durations_of(workload)), make_cluster_policy("pair-srsf"),
                        {.after = after});
    while (simulator.step()) {
    }
    EXPECT_EQ(simulator.cluster().job(0).ended, by_path ? 110 : 10);
    EXPECT_EQ(simulator.cluster().job(1).ended, by_path ? 100 : 110);
    EXPECT_EQ(simulator.cluster().job(2).ended, 610);
  }
}

TEST(Dependencies, AChainOfAMillionJobsHasNoCycle) {
  Predecessors after(1'000'000);
  for (JobId job = 1; job < after.size(); ++job) {
    after[job - 1].push_back(job);
  }
  EXPECT_THAT(find_cycle(after), IsEmpty());
  after.back().push_back(0);
  EXPECT_EQ(find_cycle(after).size(), after.size());
}

}  // namespace
}  // namespace torchshare
