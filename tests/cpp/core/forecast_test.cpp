#include "cluster/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/live_scheduler.h"
#include "cluster/placing.h"
#include "fakes/workloads.h"

namespace torchshare {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ClusterOptions gpus(int count, Seconds restart_cost = 0) {
  return {.gpus = count, .gpus_per_node = count, .restart_cost = restart_cost};
}

/// The end of a job that was rejected.
constexpr Seconds kNotRun = kNeverVirtual;

TEST(Deadlines, EdfSuspendsTheJobThatIsDueLater) {
  const std::vector<WorkloadJob> workload{{.arrival = 0, .duration = 100, .deadline = 300},
                                          {.arrival = 10, .duration = 50, .deadline = 60}};
  EXPECT_THAT(ends_of("edf", gpus(1), Interference(2), workload), ElementsAre(150, 60));
  EXPECT_THAT(ends_of("edf", gpus(1, 5), Interference(2), workload), ElementsAre(155, 60));
}

TEST(Deadlines, AJobThatWouldMakeAnAcceptedOneLateIsRejectedAndNeverRuns) {
  const std::vector<WorkloadJob> workload{{.arrival = 0, .duration = 100, .deadline = 110},
                                          {.arrival = 10, .duration = 50, .deadline = 55},
                                          {.arrival = 20, .duration = 5, .deadline = 6}};
  EXPECT_THAT(ends_of("edf", gpus(1), Interference(2), workload), ElementsAre(105, kNotRun, 25));
  EXPECT_THAT(ends_of("srtf", gpus(1), Interference(2), workload), ElementsAre(155, 65, 25)) << "admits all";
}

TEST(Deadlines, AJobThatWouldBeLateItselfIsRejected) {
  const std::vector<WorkloadJob> workload{{.arrival = 0, .duration = 100, .deadline = 100},
                                          {.arrival = 0, .duration = 100, .deadline = 199},
                                          {.arrival = 0, .duration = 100, .deadline = 200}};
  EXPECT_THAT(ends_of("edf", gpus(1), Interference(2), workload), ElementsAre(100, kNotRun, 200));
}

TEST(Deadlines, JobsShareIfBothEndInTime) {
  const std::vector<WorkloadJob> workload{{.duration = 100, .deadline = 150}, {.duration = 100, .deadline = 130}};
  EXPECT_THAT(ends_of("pair-edf", gpus(1), Interference(1.2), workload), ElementsAre(120, 120));
  EXPECT_THAT(ends_of("pair-edf", gpus(1), Interference(1.4), workload), ElementsAre(100, kNotRun));
  EXPECT_THAT(ends_of("edf", gpus(1), Interference(1.2), workload), ElementsAre(100, kNotRun));
}

TEST(Deadlines, JobsThatHaveNoTimeToSpareDoNotShare) {
  const std::vector<WorkloadJob> workload{{.duration = 100, .deadline = 105}, {.duration = 100, .deadline = 210}};
  EXPECT_THAT(ends_of("pair-edf", gpus(1), Interference(1.2), workload), ElementsAre(100, 200));
}

TEST(Deadlines, JobsThatGainNothingDoNotShare) {
  const std::vector<WorkloadJob> workload{{.duration = 100, .deadline = 300}, {.duration = 100, .deadline = 301}};
  EXPECT_THAT(ends_of("pair-edf", gpus(1), Interference(1.9), workload), ElementsAre(190, 190));
  EXPECT_THAT(ends_of("pair-edf", gpus(1), Interference(2), workload), ElementsAre(100, 200));
}

TEST(Deadlines, TheJobThatMustStartSoonerComesFirstAlthoughItIsDueLater) {
  // The first must start by 210, the second by 110.
  const std::vector<WorkloadJob> workload{{.duration = 20, .deadline = 230},
                                          {.arrival = 1, .duration = 200, .deadline = 309}};
  const Interference never(Interference::kNeverShares);
  EXPECT_THAT(ends_of("pair-edf", gpus(1), never, workload), ElementsAre(220, 201));
  EXPECT_THAT(ends_of("edf", gpus(1), never, workload), ElementsAre(20, 220));
}

TEST(Deadlines, AGangGetsTheGpusOfJobsThatAreDueLater) {
  const std::vector<WorkloadJob> workload{{.duration = 100, .deadline = 400},
                                          {.duration = 100, .deadline = 500},
                                          {.arrival = 10, .duration = 50, .gpus = 2, .deadline = 60}};
  EXPECT_THAT(ends_of("edf", gpus(2), Interference(1.5), workload), ElementsAre(150, 150, 60));
}

TEST(Deadlines, JobsWithoutOneComeLastAndAreNeverRejected) {
  const std::vector<WorkloadJob> workload{
      {.duration = 100}, {.duration = 40}, {.arrival = 10, .duration = 50, .deadline = 50}};
  EXPECT_THAT(ends_of("edf", gpus(1), Interference(2), workload), ElementsAre(190, 90, 60));
  EXPECT_THAT(ends_of("pair-edf", gpus(1), Interference(Interference::kNeverShares), workload),
              ElementsAre(190, 90, 60));
}

/// Starts the job that came last first, never suspends, and keeps deadlines.
class LastFirst final : public ClusterPolicy {
 public:
  Rank rank(const Cluster& cluster, JobId job) const override { return {0, -cluster.job(job).asked.arrival}; }
  void schedule(Cluster& cluster) override { start_in_order(cluster); }
  bool keeps_deadlines() const override { return true; }
};

TEST(Deadlines, AJobWithoutOneIsHeldWhileItWouldMakeAnotherLate) {
  const std::vector<WorkloadJob> workload{{.duration = 100, .deadline = 100},
                                          {.arrival = 10, .duration = 50, .deadline = 150},
                                          {.arrival = 20, .duration = 30}};
  Simulator simulator(Cluster(gpus(1), Interference(1), workload, durations_of(workload)),
                      std::make_unique<LastFirst>());
  for (int instant = 0; instant < 3; ++instant) {
    EXPECT_TRUE(simulator.step());
  }
  EXPECT_EQ(simulator.cluster().job(2).phase, JobPhase::kHeld);
  while (simulator.step()) {
  }
  EXPECT_EQ(simulator.cluster().job(1).ended, 150);
  EXPECT_EQ(simulator.cluster().job(2).ended, 180);
  EXPECT_EQ(simulator.cluster().job(2).waited, 130);
}

TEST(Deadlines, AJobThatIsLateAnywayHoldsUpNoOther) {
  const std::vector<WorkloadJob> workload{{.duration = 100, .deadline = 15},
                                          {.arrival = 30, .duration = 10, .deadline = 1000}};
  Simulator simulator(Cluster(gpus(1), Interference(2), workload, {10, 10}), make_cluster_policy("edf"));
  while (simulator.step()) {
  }
  EXPECT_EQ(simulator.cluster().job(0).ended, 100);
  EXPECT_EQ(simulator.cluster().job(1).ended, 110);
}

TEST(Deadlines, MustBePositive) {
  const std::vector<WorkloadJob> workload{{.duration = 1, .deadline = 0}};
  EXPECT_THROW(Cluster(gpus(1), Interference(1), workload, {1}), std::invalid_argument);
}

LiveScheduler live(std::string_view policy) {
  return {Cluster(gpus(1), Interference(2), {}, {}), make_cluster_policy(policy)};
}

TEST(LiveDeadlines, ANewJobIsAskedAboutBeforeItArrives) {
  LiveScheduler scheduler = live("edf");
  const WorkloadJob first{.duration = 100, .deadline = 110};
  EXPECT_FALSE(scheduler.miss_with({first}, 0, false));
  scheduler.arrive(scheduler.add(first, 100), 0);
  const auto other = scheduler.miss_with({{.arrival = 10, .duration = 50, .model = 1, .deadline = 55}}, 10, false);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->miss.job, 0U);
  EXPECT_EQ(other->miss.end, 150);
  const auto itself = scheduler.miss_with({{.arrival = 10, .duration = 50, .deadline = 120}}, 10, false);
  ASSERT_TRUE(itself);
  EXPECT_EQ(itself->miss.job, 1U);
  EXPECT_EQ(itself->miss.end, 150);
  EXPECT_FALSE(scheduler.miss_with({{.arrival = 10, .duration = 50, .deadline = 140}}, 10, false));
  EXPECT_FALSE(live("srsf").miss_with({{.duration = 50, .deadline = 1}}, 0, false)) << "does not keep deadlines";
}

TEST(LiveDeadlines, JobsThatArriveTogetherAreAskedAboutOneAfterTheOther) {
  const LiveScheduler scheduler = live("edf");
  std::vector<WorkloadJob> jobs{{.duration = 30, .deadline = 70}, {.duration = 30, .model = 3, .deadline = 61}};
  EXPECT_FALSE(scheduler.miss_with({}, 0, true));
  EXPECT_FALSE(scheduler.miss_with(jobs, 0, true));
  jobs.push_back({.duration = 11, .deadline = 65});
  const auto found = scheduler.miss_with(jobs, 0, true);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->index, 2U);
  EXPECT_EQ(found->miss.job, 0U);
  EXPECT_EQ(found->miss.end, 71);
}

TEST(LiveDeadlines, WithoutAGpuTheForecastIsThatOfOne) {
  LiveScheduler scheduler = live("edf");
  scheduler.lose(0, 0, 0);
  EXPECT_FALSE(scheduler.miss_with({{.duration = 100, .deadline = 110}}, 0, false));
  EXPECT_TRUE(scheduler.miss_with({{.duration = 100, .deadline = 90}}, 0, false));
}

TEST(LiveDeadlines, AJobThatRunsLongerThanEstimatedIsForecastAnew) {
  LiveScheduler scheduler = live("edf");
  scheduler.arrive(scheduler.add({.duration = 10, .deadline = 100}, 10), 0);
  const auto miss = scheduler.miss_with({{.arrival = 30, .duration = 10, .deadline = 15}}, 30, false);
  EXPECT_FALSE(miss) << "it comes first";
  const auto late = scheduler.miss_with({{.arrival = 30, .duration = 65, .deadline = 65}}, 30, false);
  ASSERT_TRUE(late) << "the other one, now taken to last 40 s, would end at 105";
  EXPECT_EQ(late->miss.job, 0U);
  EXPECT_EQ(late->miss.end, 105);
}

TEST(LiveDeadlines, AHeldJobIsHeldInAnotherSchedulerToo) {
  LiveScheduler first({Cluster(gpus(1), Interference(1), {}, {}), std::make_unique<LastFirst>()});
  first.arrive(first.add({.duration = 100, .deadline = 100}, 100), 0);
  first.arrive(first.add({.arrival = 10, .duration = 50, .deadline = 150}, 50), 10);
  EXPECT_THAT(first.arrive(first.add({.arrival = 20, .duration = 30}, 30), 20).start, IsEmpty());
  LiveScheduler second({Cluster(gpus(1), Interference(1), {}, {}), std::make_unique<LastFirst>()});
  for (const JobId job : {0, 1, 2}) {
    const WorkloadJob& asked = first.cluster().job(job).asked;
    second.restore(second.add(asked, asked.duration), first.progress(job), first.cluster().job(job).gpus, 20);
  }
  EXPECT_EQ(second.cluster().job(2).phase, JobPhase::kHeld);
  EXPECT_THAT(second.end(0, 100).start, ElementsAre(1));
  EXPECT_THAT(second.end(1, 150).start, ElementsAre(2));
  EXPECT_THAT(first.end(2, 30).start, IsEmpty()) << "a held job can be cancelled";
  EXPECT_THAT(first.cluster().held(), IsEmpty());
}

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
