#include "cluster/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

#include "cluster/live_scheduler.h"
#include "fakes/workloads.h"

namespace torchshare {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Simulator, CountsTheGpuTimeThatWasBusy) {
  const ClusterOptions options{.gpus = 4, .record_spans = true};
  const std::vector<WorkloadJob> workload{{0, 100, 2, 0, 0}, {10, 50, 1, 0, 0}};
  Simulator simulator(Cluster(options, Interference(1), workload, durations_of(workload)), make_cluster_policy("fifo"),
                      {.record_usage = true});
  while (simulator.step()) {
  }
  EXPECT_DOUBLE_EQ(simulator.busy_gpu_seconds(), 100 * 2 + 50);
  ASSERT_EQ(simulator.usage().size(), 4U);
  EXPECT_EQ(simulator.usage()[1].busy, 3);
  EXPECT_EQ(simulator.usage()[1].shared, 0);
  ASSERT_EQ(simulator.cluster().spans().size(), 2U);
  EXPECT_EQ(simulator.cluster().spans()[0].job, 1U);
  EXPECT_DOUBLE_EQ(simulator.cluster().spans()[0].begin, 10);
  EXPECT_DOUBLE_EQ(simulator.cluster().spans()[0].end, 60);
}

TEST(Simulator, TakesAWorkloadInAnyOrder) {
  const ClusterOptions options{.gpus = 1, .gpus_per_node = 1};
  EXPECT_THAT(ends_of("fifo", options, Interference(1), {{50, 10, 1, 0, 0}, {0, 20, 1, 0, 0}}), ElementsAre(60, 20));
}

TEST(Simulator, GivesTheSameOnTwoThreadsAtOnce) {
  std::mt19937_64 random(7);
  const std::vector<WorkloadJob> workload = random_workload(random, 300, 16, 1);
  const auto run = [&] { return ends_of("pair-srsf", {.gpus = 16}, Interference(1.3), workload); };
  auto other = std::async(std::launch::async, run);
  EXPECT_EQ(run(), other.get());
}

/// A policy that never starts anything.
class Idle final : public ClusterPolicy {
 public:
  Rank rank(const Cluster&, JobId) const override { return {}; }
  void schedule(Cluster&) override {}
};

TEST(Simulator, ThrowsIfAPolicyLetsJobsWaitForever) {
  const std::vector<WorkloadJob> workload{{0, 1, 1, 0, 0}};
  Simulator simulator(Cluster({}, Interference(1), workload, {1}), std::make_unique<Idle>());
  EXPECT_TRUE(simulator.step());
  EXPECT_THROW(simulator.step(), std::logic_error);
}

TEST(LiveScheduler, ReturnsTheJobsToStartAndToSuspend) {
  const ClusterOptions options{.gpus = 1, .gpus_per_node = 1, .restart_cost = 1};
  const std::vector<WorkloadJob> workload{{0, 100, 1, 0, 0}, {0, 10, 1, 0, 0}};
  LiveScheduler scheduler(Cluster(options, Interference(1.8), workload, durations_of(workload)),
                          make_cluster_policy("pair-srsf"));
  auto orders = scheduler.arrive(0, 0);
  EXPECT_THAT(orders.start, ElementsAre(0));
  orders = scheduler.arrive(1, 20);
  EXPECT_THAT(orders.suspend, ElementsAre(0));
  EXPECT_THAT(orders.start, ElementsAre(1));
  orders = scheduler.end(1, 33);
  EXPECT_THAT(orders.suspend, IsEmpty());
  EXPECT_THAT(orders.start, ElementsAre(0));
  EXPECT_THROW(scheduler.end(1, 34), std::invalid_argument);
  EXPECT_THROW(scheduler.arrive(0, 34), std::invalid_argument);
  EXPECT_THROW(scheduler.end(0, 10), std::invalid_argument);
}

LiveScheduler scheduler_of(std::string_view policy, int gpus = 2) {
  const ClusterOptions options{.gpus = gpus, .gpus_per_node = gpus, .restart_cost = 1};
  return {Cluster(options, Interference(1.8), {}, {}), make_cluster_policy(policy)};
}

TEST(LiveScheduler, TakesJobsThatWereNotKnownAndEndsThoseThatWait) {
  LiveScheduler scheduler = scheduler_of("fifo", 1);
  EXPECT_THAT(scheduler.arrive(scheduler.add({.arrival = 0, .duration = 10}, 10), 0).start, ElementsAre(0));
  EXPECT_THAT(scheduler.arrive(scheduler.add({.arrival = 1, .duration = 10}, 10), 1).start, IsEmpty());
  EXPECT_THAT(scheduler.arrive(scheduler.add({.arrival = 2, .duration = 10, .priority = -1}, 10), 2).start, IsEmpty());
  EXPECT_THAT(scheduler.arrive(scheduler.add({.arrival = 3, .duration = 10}, 10), 3).start, IsEmpty());
  EXPECT_THAT(scheduler.end(1, 4).start, IsEmpty());
  EXPECT_THAT(scheduler.end(0, 12).start, ElementsAre(2));  // its priority is higher
  EXPECT_THAT(scheduler.end(2, 13).start, ElementsAre(3));
  EXPECT_THROW(scheduler.add({.arrival = 4, .duration = 10, .gpus = 2}, 10), std::invalid_argument);
}

TEST(LiveScheduler, DecidesAboutSuccessorsTogetherWithThoseThatWait) {
  LiveScheduler scheduler = scheduler_of("fifo", 1);
  for (int job = 0; job < 3; ++job) {
    scheduler.add({.arrival = 0, .duration = 10}, 10);
  }
  scheduler.arrive(0, 0);
  scheduler.arrive(2, 2);
  EXPECT_THROW(scheduler.end(0, 10, {0}), std::invalid_argument) << "it has already arrived";
  EXPECT_THAT(scheduler.end(0, 10, {1}).start, ElementsAre(1)) << "it was submitted before job 2";
  EXPECT_THAT(scheduler.end(1, 20).start, ElementsAre(2));
}

TEST(LiveScheduler, LosesAndGainsGpus) {
  LiveScheduler scheduler = scheduler_of("fifo");
  for (JobId job = 0; job < 2; ++job) {
    scheduler.arrive(scheduler.add({.arrival = 0, .duration = 100}, 100), 0);
  }
  const auto lost = scheduler.lose(0, 10, 10);
  EXPECT_THAT(lost.suspend, ElementsAre(0));
  EXPECT_THAT(lost.start, IsEmpty());
  EXPECT_THAT(scheduler.lose(0, 11, 11).suspend, IsEmpty());
  EXPECT_THAT(scheduler.end(1, 20).start, ElementsAre(0));
  EXPECT_THAT(scheduler.cluster().job(0).gpus, ElementsAre(1));
  scheduler.arrive(scheduler.add({.arrival = 30, .duration = 100}, 100), 30);
  scheduler.add_node();
  EXPECT_THAT(scheduler.gain(3, 31).start, ElementsAre(2));
  EXPECT_THAT(scheduler.cluster().job(2).gpus, ElementsAre(3));
  EXPECT_THROW(scheduler.gain(4, 32), std::invalid_argument);
}

TEST(LiveScheduler, DoesNotSuspendPinnedJobs) {
  for (const std::string_view policy : {"srsf", "srtf", "pair-srsf"}) {
    for (const bool pinned : {false, true}) {
      LiveScheduler scheduler = scheduler_of(policy, 1);
      scheduler.arrive(scheduler.add({.arrival = 0, .duration = 1000}, 1000), 0);
      scheduler.set_pinned(0, pinned);
      const auto orders = scheduler.arrive(scheduler.add({.arrival = 20, .duration = 10}, 10), 20);
      EXPECT_EQ(orders.suspend.size(), pinned ? 0 : 1) << policy;
    }
  }
}

TEST(LiveScheduler, ReportsMovesAndLearnsRatios) {
  LiveScheduler scheduler = scheduler_of("pair-srsf", 1);
  scheduler.set_ratio(0, 0, 1.1, 0);
  for (JobId job = 0; job < 2; ++job) {
    EXPECT_THAT(scheduler.arrive(scheduler.add({.arrival = 0, .duration = 1000}, 1000), 0).start, ElementsAre(job));
  }
  scheduler.add_node();
  const auto orders = scheduler.gain(1, 10);
  ASSERT_EQ(orders.start.size(), 1U);
  EXPECT_EQ(orders.suspend, orders.start);
  EXPECT_THAT(scheduler.cluster().job(orders.start[0]).gpus, ElementsAre(1));
}

TEST(LiveScheduler, GoesOnWithTheJobsOfAnother) {
  LiveScheduler first = scheduler_of("srsf", 1);
  first.arrive(first.add({.arrival = 0, .duration = 100}, 100), 0);
  first.arrive(first.add({.arrival = 20, .duration = 10}, 10), 20);  // suspends job 0
  first.end(1, 30);
  first.arrive(first.add({.arrival = 40, .duration = 500}, 500), 40);
  EXPECT_DOUBLE_EQ(first.progress(0).work_left, 100 - 20 - 9);  // it paid its restart
  LiveScheduler second = scheduler_of("srsf", 1);
  second.restore(second.add({.arrival = 0, .duration = 100}, 100), first.progress(0), {0}, 40);
  second.restore(second.add({.arrival = 40, .duration = 500}, 500), first.progress(2), {}, 40);
  EXPECT_DOUBLE_EQ(second.cluster().ends_at(0), first.cluster().ends_at(0));
  EXPECT_EQ(second.progress(0).preemptions, 1);
  EXPECT_DOUBLE_EQ(second.progress(0).run, 30);
  EXPECT_THROW(second.restore(0, {}, {}, 50), std::invalid_argument);
  EXPECT_THAT(second.look(50).start, IsEmpty());
  EXPECT_THAT(second.end(0, 60).start, ElementsAre(1));
}

TEST(LiveScheduler, LeavesJobsThatWaitTheirRankInAnother) {
  LiveScheduler first = scheduler_of("pair-srsf", 1);
  first.set_ratio(0, 0, 3, 0);
  first.arrive(first.add({.arrival = 0, .duration = 100}, 100), 0);
  first.set_pinned(0, true);
  first.arrive(first.add({.arrival = 0, .duration = 500}, 500), 0);
  first.arrive(first.add({.arrival = 51'200, .duration = 430}, 430), 51'200);  // its rank is 480
  LiveScheduler second = scheduler_of("pair-srsf", 1);
  second.add_node();  // with two GPUs, its rank would be 530
  second.set_ratio(0, 0, 3, 0);
  for (const JobId job : {0, 1, 2}) {
    const WorkloadJob& asked = first.cluster().job(job).asked;
    second.restore(second.add(asked, asked.duration), first.progress(job), first.cluster().job(job).gpus, 51'200);
    EXPECT_EQ(second.cluster().job(job).rank, first.cluster().job(job).rank);
  }
  EXPECT_EQ(second.cluster().job(2).rank.value, 480);
}

TEST(LiveScheduler, SplitsAJobThatStartsBesideAnotherAndNoneThatRuns) {
  const ClusterOptions options{
      .gpus = 1, .gpus_per_node = 1, .gpu_memory_gib = 12, .largest_split = 128, .keep_splits = true};
  const SplitModel split{.fixed_memory = 0.2, .fixed_time = 0.1, .most = 8};
  const auto in_memory = [&](Seconds duration, double gib) {
    return WorkloadJob{.duration = duration, .memory_gib = gib, .split = split};
  };
  const auto make = [&] {
    return LiveScheduler(Cluster(options, Interference(1), {}, {}), make_cluster_policy("sjf-bsbf"));
  };
  LiveScheduler first = make();
  first.arrive(first.add(in_memory(1000, 8), 1000), 0);
  EXPECT_THAT(first.arrive(first.add(in_memory(1000, 8), 1000), 0).start, ElementsAre(1));
  EXPECT_EQ(first.cluster().job(0).sub_batches, 1);
  EXPECT_EQ(first.cluster().job(1).sub_batches, 4) << "1.6 + 6.4 / 4 GiB fit beside 8, half do not";
  first.end(0, 100);
  EXPECT_EQ(first.cluster().job(1).sub_batches, 4) << "a running job keeps its sub-batches";
  EXPECT_DOUBLE_EQ(first.cluster().ends_at(1), 1000 * 1.3);
  LiveScheduler second = make();
  for (JobId job = 0; job < 2; ++job) {  // the first has ended
    second.add(in_memory(1000, 8), 1000);
  }
  second.restore(1, first.progress(1), {0}, 100);
  EXPECT_DOUBLE_EQ(second.cluster().ends_at(1), 1000 * 1.3);
  for (LiveScheduler* const each : {&first, &second}) {
    const auto orders = each->arrive(each->add(in_memory(500, 8.5), 500), 200);
    EXPECT_THAT(orders.suspend, IsEmpty());
    EXPECT_THAT(orders.start, ElementsAre(2)) << "it fits beside 3.2 GiB whole";
    EXPECT_EQ(each->cluster().job(2).sub_batches, 1);
    EXPECT_EQ(each->cluster().job(1).sub_batches, 4);
  }
}

TEST(LiveScheduler, TakesBackTheTimeInWhichALostGpuWasSilent) {
  LiveScheduler scheduler = scheduler_of("fifo", 1);
  scheduler.arrive(scheduler.add({.arrival = 0, .duration = 100}, 100), 0);
  scheduler.lose(0, 30, 5000);
  EXPECT_DOUBLE_EQ(scheduler.progress(0).work_left, 70);
  EXPECT_DOUBLE_EQ(scheduler.progress(0).run, 30);
  scheduler.gain(0, 5000);
  scheduler.lose(0, 30, 5010);  // it cannot have been silent for longer than the job has been there
  EXPECT_DOUBLE_EQ(scheduler.progress(0).run, 30);
}

TEST(LiveScheduler, AJobThatIsAloneSharesWithNoneAndHoldsUpNoOther) {
  for (const std::string_view policy : {"sjf-ffs", "pair-srsf"}) {
    const ClusterOptions options{.gpus = 1, .gpus_per_node = 1};
    LiveScheduler scheduler(Cluster(options, Interference(1), {}, {}), make_cluster_policy(policy));
    for (JobId job = 0; job < 3; ++job) {
      scheduler.add({.arrival = 0, .duration = 100}, 100);
    }
    EXPECT_THAT(scheduler.arrive(0, 0).start, ElementsAre(0)) << policy;
    scheduler.set_group(1, kAlone);
    EXPECT_THAT(scheduler.arrive(1, 0).start, IsEmpty()) << policy;
    EXPECT_THAT(scheduler.arrive(2, 0).start, ElementsAre(2)) << policy;
    EXPECT_THAT(scheduler.end(0, 10).start, IsEmpty()) << policy;
    EXPECT_THAT(scheduler.end(2, 20).start, ElementsAre(1)) << policy;
    EXPECT_THAT(scheduler.arrive(scheduler.add({.arrival = 30, .duration = 1000}, 1000), 30).start, IsEmpty())
        << policy;
    scheduler.set_group(1, 0);
    EXPECT_THAT(scheduler.look(31).start, ElementsAre(3)) << policy;
  }
}

TEST(LiveScheduler, JobsOfDifferentGroupsDoNotShare) {
  LiveScheduler scheduler = scheduler_of("sjf-ffs", 1);
  EXPECT_THAT(scheduler.arrive(scheduler.add({.duration = 100}, 100), 0).start, ElementsAre(0));
  EXPECT_THAT(scheduler.arrive(scheduler.add({.duration = 100, .group = 1}, 100), 0).start, IsEmpty());
  EXPECT_THAT(scheduler.arrive(scheduler.add({.duration = 100}, 100), 0).start, ElementsAre(2));
}

TEST(LiveScheduler, LearnsTheRatiosOfPairsOneByOne) {
  LiveScheduler scheduler = scheduler_of("sjf-bsbf", 1);
  EXPECT_EQ(scheduler.add_model(), 1);
  scheduler.arrive(scheduler.add({.duration = 100}, 100), 0);
  EXPECT_THAT(scheduler.arrive(scheduler.add({.duration = 100, .model = 1}, 100), 0).start, IsEmpty());
  scheduler.set_ratio(1, 0, 1.1, 0);
  scheduler.set_ratio(0, 1, 1.1, 0);
  EXPECT_THAT(scheduler.look(0).start, ElementsAre(1));
  EXPECT_THROW(scheduler.set_ratio(0, 2, 1.1, 0), std::invalid_argument);
  EXPECT_THROW(scheduler.set_ratio(0, 1, 0.9, 0), std::invalid_argument);
}

}  // namespace
}  // namespace torchshare
