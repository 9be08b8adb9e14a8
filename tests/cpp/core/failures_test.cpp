#include "cluster/failures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "fakes/workloads.h"

namespace torchshare {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr FailureRates kRates{.between = 100, .repair = 20, .node_share = 0.25, .seed = 5};

Simulator with_outages(const ClusterOptions& options, const std::vector<WorkloadJob>& workload,
                       std::vector<Outage> outages) {
  return {Cluster(options, Interference(1), workload, durations_of(workload)),
          make_cluster_policy("fifo"),
          {.failures = Failures(std::move(outages))}};
}

const ClusterJob& ended(Simulator& simulator, JobId job = 0) {
  while (simulator.step()) {
  }
  return simulator.cluster().job(job);
}

ClusterOptions one_gpu_with_checkpoints(Seconds every) {
  return {.gpus = 1, .gpus_per_node = 1, .restart_cost = 5, .checkpoint_every = every};
}

TEST(Failures, DrawnOnesHaveTheirMeansAndShare) {
  Failures failures(kRates, 16, 4);
  constexpr int kCount = 20'000;
  Seconds last = 0;
  double repair = 0;
  int nodes = 0;
  std::vector<int> hits(16);
  for (int i = 0; i < kCount; ++i) {
    const Outage outage = *failures.next();
    ASSERT_GE(outage.begin, last);
    ASSERT_TRUE(outage.gpus == 1 || (outage.gpus == 4 && outage.first % 4 == 0));
    last = outage.begin;
    repair += outage.end - outage.begin;
    nodes += outage.gpus == 4 ? 1 : 0;
    for (int gpu = 0; gpu < outage.gpus; ++gpu) {
      ++hits[static_cast<std::size_t>(outage.first + gpu)];
    }
  }
  EXPECT_NEAR(last / kCount, 100, 4);
  EXPECT_NEAR(repair / kCount, 20, 1);
  EXPECT_NEAR(1.0 * nodes / kCount, 0.25, 0.02);
  for (const int each : hits) {
    EXPECT_NEAR(each, kCount * (0.75 + 4 * 0.25) / 16, 250);
  }
}

TEST(Failures, EqualSeedsDrawEqualOnesAndAnotherSeedOthers) {
  const auto begins = [](std::uint64_t seed) {
    Failures failures({.between = 100, .repair = 20, .seed = seed}, 16, 4);
    return std::vector<Seconds>{failures.next()->begin, failures.next()->begin, failures.next()->end};
  };
  EXPECT_EQ(begins(1), begins(1));
  EXPECT_NE(begins(1), begins(2));
}

TEST(Failures, AJobGoesBackToItsLastCheckpointAndPaysItsRestart) {
  // At 45 it has checkpoints of 10, 20, 30 and 40 s of work; the GPU is back at 50.
  Simulator simulator = with_outages(one_gpu_with_checkpoints(10), {{.duration = 100}}, {{.begin = 45, .end = 50}});
  const ClusterJob& job = ended(simulator);
  EXPECT_DOUBLE_EQ(job.ended, 50 + 5 + 60);
  EXPECT_DOUBLE_EQ(job.lost_work, 5);
  EXPECT_EQ(job.losses, 1);
  EXPECT_DOUBLE_EQ(job.waited, 5);
  EXPECT_DOUBLE_EQ(simulator.away_gpu_seconds(), 5);
  EXPECT_DOUBLE_EQ(simulator.busy_gpu_seconds(), 45 + 65);
}

TEST(Failures, WithoutCheckpointsAJobBeginsAgain) {
  Simulator simulator =
      with_outages(one_gpu_with_checkpoints(kNeverVirtual), {{.duration = 100}}, {{.begin = 45, .end = 50}});
  const ClusterJob& job = ended(simulator);
  EXPECT_DOUBLE_EQ(job.ended, 50 + 5 + 100);
  EXPECT_DOUBLE_EQ(job.lost_work, 45);
}

TEST(Failures, AFailureDuringARestartCostsTheRestartOnly) {
  Simulator simulator = with_outages(one_gpu_with_checkpoints(10), {{.duration = 100}},
                                     {{.begin = 53, .end = 54}, {.begin = 45, .end = 50}});
  const ClusterJob& job = ended(simulator);
  EXPECT_DOUBLE_EQ(job.ended, 54 + 5 + 60);
  EXPECT_DOUBLE_EQ(job.lost_work, 5);
  EXPECT_EQ(job.losses, 2);
  EXPECT_DOUBLE_EQ(job.run, 45 + 3 + 65);
}

TEST(Failures, ANodeTakesEachOfItsJobsOnceAndGangsWhole) {
  const ClusterOptions options{.gpus = 8, .restart_cost = 0};
  // The gang has the first node and half of the other.
  Simulator simulator = with_outages(options, {{.duration = 100, .gpus = 6}, {.duration = 100, .gpus = 2}},
                                     {{.first = 0, .gpus = 4, .begin = 30, .end = 40}});
  EXPECT_DOUBLE_EQ(ended(simulator, 0).ended, 140);
  EXPECT_EQ(simulator.cluster().job(0).losses, 1);
  EXPECT_DOUBLE_EQ(simulator.cluster().job(1).ended, 100);
  EXPECT_DOUBLE_EQ(simulator.away_gpu_seconds(), 40);
}

TEST(Failures, OfAnIdleGpuTakeNothingButItsTime) {
  const ClusterOptions options{.gpus = 2, .gpus_per_node = 2};
  Simulator simulator = with_outages(options, {{.duration = 100}, {.arrival = 20, .duration = 10}},
                                     {{.first = 1, .begin = 10, .end = 50}});
  EXPECT_DOUBLE_EQ(ended(simulator, 0).ended, 100);
  EXPECT_EQ(simulator.cluster().job(0).losses, 0);
  EXPECT_DOUBLE_EQ(simulator.cluster().job(1).ended, 60);
}

TEST(Failures, AGpuIsAwayUntilTheLastOfItsOutagesEnds) {
  const ClusterOptions options{.gpus = 2, .gpus_per_node = 2};
  Simulator simulator = with_outages(options, {{.arrival = 15, .duration = 10, .gpus = 2}},
                                     {{.gpus = 2, .begin = 10, .end = 30}, {.first = 1, .begin = 20, .end = 60}});
  EXPECT_DOUBLE_EQ(ended(simulator).ended, 70);
  EXPECT_DOUBLE_EQ(simulator.away_gpu_seconds(), 20 + 50);
}

TEST(Failures, AJobThatEndsAtThatTimeHasEnded) {
  Simulator simulator = with_outages(one_gpu_with_checkpoints(10), {{.duration = 45}}, {{.begin = 45, .end = 50}});
  EXPECT_DOUBLE_EQ(ended(simulator).ended, 45);
}

TEST(Failures, AJobThatCannotEndIsAnError) {
  const auto message = [](const std::string& text) { return ThrowsMessage<std::runtime_error>(HasSubstr(text)); };
  Simulator stuck = with_outages(one_gpu_with_checkpoints(10), {{.duration = 45}}, {{.begin = 40}});
  EXPECT_THAT([&] { ended(stuck); }, message("job 0 waits for ever: it needs 1 GPUs, and 1 of 1 have left"));
  std::vector<Outage> every_minute;
  for (int minute = 1; minute < 2000; ++minute) {
    every_minute.push_back({.begin = 60.0 * minute, .end = 60.0 * minute + 1});
  }
  Simulator fruitless = with_outages(one_gpu_with_checkpoints(55), {{.duration = 500}}, every_minute);
  EXPECT_THAT([&] { ended(fruitless); }, message("job 0 was interrupted 1000 times since its last checkpoint"));
  Simulator fruitful = with_outages(one_gpu_with_checkpoints(1), {{.duration = 60'000}}, every_minute);
  EXPECT_EQ(ended(fruitful).losses, 1110) << "60 s of work, then 54 s of each minute";
}

TEST(Failures, RefuseWhatDoesNotFit) {
  EXPECT_THROW(Failures({Outage{.begin = 5, .end = 5}}), std::invalid_argument);
  EXPECT_THROW(Failures({Outage{.first = -1, .begin = 5}}), std::invalid_argument);
  EXPECT_THROW(Failures({.between = 0, .repair = 1}, 4, 4), std::invalid_argument);
  EXPECT_THROW(Failures({.between = 1, .repair = 1, .node_share = 2}, 4, 4), std::invalid_argument);
  EXPECT_THROW(Failures(kRates, 6, 4), std::invalid_argument);
  EXPECT_THROW(with_outages(one_gpu_with_checkpoints(10), {}, {{.first = 1}}), std::invalid_argument);
  EXPECT_THROW(with_outages(one_gpu_with_checkpoints(0), {}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace torchshare
