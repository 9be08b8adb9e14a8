#include "cluster/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "fakes/workloads.h"

namespace torchshare {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

ClusterOptions four_gpus() {
  return {.gpus = 4, .gpus_per_node = 4, .gpu_memory_gib = 16, .restart_cost = 10};
}

class ClusterTest : public ::testing::Test {
 protected:
  Cluster make(const std::vector<WorkloadJob>& jobs, const Interference& interference = Interference(1.5)) {
    Cluster cluster(options_, interference, jobs, durations_of(jobs));
    for (JobId job = 0; job < jobs.size(); ++job) {
      cluster.arrive(job, {0, static_cast<double>(job)});
    }
    return cluster;
  }

  ClusterOptions options_ = four_gpus();
};

TEST_F(ClusterTest, AGangRunsAtTheSpeedOfItsSlowestGpu) {
  // Ratios: model 0 has 1.2 beside itself and 3 beside model 1; model 1 has 2 beside model 0.
  Cluster cluster = make({{0, 100, 4, 0, 0}, {0, 100, 1, 0, 0}, {0, 100, 1, 0, 1}}, Interference(2, {1.2, 3, 2, 1}));
  cluster.start(0, {0, 1, 2, 3});
  EXPECT_DOUBLE_EQ(cluster.job(0).speed, 1);
  cluster.start(1, {0});
  EXPECT_DOUBLE_EQ(cluster.job(0).speed, 1 / 1.2);
  EXPECT_DOUBLE_EQ(cluster.job(1).speed, 1 / 1.2);
  cluster.start(2, {3});
  EXPECT_DOUBLE_EQ(cluster.job(0).speed, 1 / 3.0);
  EXPECT_DOUBLE_EQ(cluster.job(2).speed, 1 / 2.0);
  EXPECT_EQ(cluster.job(0).shared_gpus, 2);
  cluster.advance(30);  // job 0 has done 10 s of its work
  cluster.end(2);
  EXPECT_DOUBLE_EQ(cluster.job(0).work_left, 90);
  EXPECT_DOUBLE_EQ(cluster.ends_at(0), 30 + 90 * 1.2);
}

TEST_F(ClusterTest, AResumedJobPaysItsRestartFirst) {
  Cluster cluster = make({{0, 100, 1, 0, 0}});
  cluster.start(0, {0});
  EXPECT_DOUBLE_EQ(cluster.ends_at(0), 100);
  cluster.advance(40);
  cluster.suspend(0, {0, 0});
  cluster.advance(50);
  EXPECT_DOUBLE_EQ(cluster.remaining(0), 60);
  cluster.start(0, {1});
  EXPECT_DOUBLE_EQ(cluster.ends_at(0), 50 + 10 + 60);
  cluster.advance(55);
  EXPECT_DOUBLE_EQ(cluster.remaining(0), 60);
  cluster.advance(70);
  EXPECT_DOUBLE_EQ(cluster.remaining(0), 50);
  cluster.advance(120);
  cluster.end(0);
  EXPECT_DOUBLE_EQ(cluster.job(0).waited, 10);
  EXPECT_DOUBLE_EQ(cluster.job(0).run, 40 + 70);
  EXPECT_EQ(cluster.job(0).preemptions, 1);
}

WorkloadJob sized(double memory_gib, const SplitModel& split, int gpus = 1) {
  return {.duration = 100, .gpus = gpus, .memory_gib = memory_gib, .split = split};
}

TEST_F(ClusterTest, SplitsANewJobOrItsPartnerUntilTheyFit) {
  const SplitModel dear{.fixed_memory = 0.25, .fixed_time = 0.5};
  const SplitModel cheap{.fixed_memory = 0.25, .fixed_time = 0.1};
  Cluster cluster = make({sized(8, dear), sized(8, dear), sized(14, cheap), sized(16, cheap), sized(16, dear)});
  cluster.start(0, {0});
  EXPECT_EQ(cluster.splits_beside(1, 0)->a.sub_batches, 1);
  // 14 * (0.25 + 0.75 / 4) is 6.1 GiB; with 2 sub-batches it is 8.75.
  EXPECT_EQ(cluster.splits_beside(2, 0)->a.sub_batches, 4);
  EXPECT_EQ(cluster.splits_beside(2, 0)->b.sub_batches, 1);
  cluster.start(2, {0}, 4);
  EXPECT_DOUBLE_EQ(cluster.job(2).speed, 1 / (1.5 * 1.3));
  EXPECT_DOUBLE_EQ(cluster.job(0).speed, 1 / 1.5);
  cluster.end(0);
  EXPECT_EQ(cluster.job(2).sub_batches, 1) << "alone, its batches are whole again";
  EXPECT_DOUBLE_EQ(cluster.job(2).speed, 1);
  // The running job is the cheaper one to split: 4 GiB remain for a new job of 8, then 16 * (0.25 + 0.75 / 4) = 7 GiB.
  cluster.start(3, {1});
  EXPECT_EQ(cluster.splits_beside(1, 3)->a.sub_batches, 1);
  EXPECT_EQ(cluster.splits_beside(1, 3)->b.sub_batches, 4);
  cluster.start(1, {1});
  EXPECT_EQ(cluster.job(3).sub_batches, 4);
  EXPECT_DOUBLE_EQ(cluster.job(3).speed, 1 / (1.5 * 1.3));
  EXPECT_DOUBLE_EQ(cluster.job(1).speed, 1 / 1.5);
  options_.largest_split = 1;
  Cluster whole = make({sized(8, dear), sized(14, cheap)});
  whole.start(0, {0});
  EXPECT_FALSE(whole.splits_beside(1, 0));
}

TEST_F(ClusterTest, AJobHasNoMoreSubBatchesThanItsPresentPartnersNeed) {
  const SplitModel cheap{.fixed_memory = 0, .fixed_time = 0.1};
  Cluster cluster = make({sized(12, cheap, 2), sized(4, cheap), sized(13, {.fixed_memory = 1})});
  cluster.start(0, {0, 1});
  cluster.start(1, {0});
  EXPECT_EQ(cluster.job(0).sub_batches, 1);
  EXPECT_EQ(cluster.splits_beside(2, 0)->b.sub_batches, 4);
  cluster.start(2, {1});
  EXPECT_EQ(cluster.job(0).sub_batches, 4);
  EXPECT_DOUBLE_EQ(cluster.job(0).speed, 1 / (1.5 * 1.3));
  cluster.end(2);
  EXPECT_EQ(cluster.job(0).sub_batches, 1);
  EXPECT_DOUBLE_EQ(cluster.job(0).speed, 1 / 1.5);
}

TEST_F(ClusterTest, AJobIsSplitNoFurtherThanItAllows) {
  Cluster cluster = make({sized(8, {.fixed_memory = 1}), sized(16, {.fixed_memory = 0, .most = 3}),
                          sized(16, {.fixed_memory = 0.1, .most = 3})});
  cluster.start(0, {0});
  EXPECT_EQ(cluster.splits_beside(1, 0)->a.sub_batches, 2);
  EXPECT_FALSE(cluster.splits_beside(2, 0)) << "it would need four";
}

TEST_F(ClusterTest, AnEstimateThatWasTooShortIsDoubled) {
  Cluster cluster(options_, Interference(1), {{0, 100, 1, 0, 0}}, {30});
  cluster.arrive(0, {});
  cluster.start(0, {0});
  cluster.advance(20);
  EXPECT_DOUBLE_EQ(cluster.remaining(0), 10);
  cluster.advance(30);
  EXPECT_DOUBLE_EQ(cluster.remaining(0), 30);
  cluster.advance(70);
  EXPECT_DOUBLE_EQ(cluster.remaining(0), 50);
}

TEST_F(ClusterTest, WithoutDurationsAJobShowsOnlyHowOldItIs) {
  options_.durations_known = false;
  Cluster cluster = make({{0, 10'000, 2, 0, 0}});
  EXPECT_DOUBLE_EQ(cluster.remaining(0), 300);
  cluster.start(0, {0, 1});
  cluster.advance(1199);
  EXPECT_DOUBLE_EQ(cluster.remaining(0), 300);
  cluster.advance(1200);
  EXPECT_DOUBLE_EQ(cluster.remaining(0), 1200);
  cluster.advance(5000);
  EXPECT_DOUBLE_EQ(cluster.remaining(0), 4800);
  EXPECT_DOUBLE_EQ(cluster.attained(0), 10'000);
}

TEST_F(ClusterTest, RefusesInvalidJobs) {
  const auto refusal = [&](const WorkloadJob& job) { return [&, job] { make({job}); }; };
  using E = std::invalid_argument;
  EXPECT_THAT(refusal({0, 0, 1, 0, 0}), ThrowsMessage<E>(HasSubstr("duration 0 s")));
  EXPECT_THAT(refusal({-1, 1, 1, 0, 0}), ThrowsMessage<E>(HasSubstr("arrival -1 s")));
  EXPECT_THAT(refusal({0, kNeverVirtual, 1, 0, 0}), ThrowsMessage<E>(HasSubstr("duration inf s")));
  EXPECT_THAT(refusal({0, 1, 5, 0, 0}), ThrowsMessage<E>(HasSubstr("5 GPUs with 0 GiB; the cluster has 4")));
  EXPECT_THAT(refusal({0, 1, 1, 17, 0}), ThrowsMessage<E>(HasSubstr("17 GiB; the cluster has 4 with 16 GiB")));
  EXPECT_THAT(refusal({0, 1, 1, 0, 1}),
              ThrowsMessage<E>(HasSubstr("model must be in the interference table, got 1 of 1")));
  EXPECT_THROW(Cluster(options_, Interference(1), {{0, 1, 1, 0, 0}}, {}), E);
  EXPECT_THAT(refusal(sized(1, {.fixed_memory = 1.5})),
              ThrowsMessage<E>(HasSubstr("from 0 to 1 and sub-batches from 1")));
  EXPECT_THAT(refusal(sized(1, {.most = 0})), ThrowsMessage<E>(HasSubstr("got 0.3, 0.05 and 0")));
}

TEST(Interference, RefusesInvalidTables) {
  EXPECT_THROW(Interference(0.9), std::invalid_argument);
  EXPECT_THROW(Interference(2, {1, 1, 1}), std::invalid_argument);
  EXPECT_THROW(Interference(1, {std::numeric_limits<double>::quiet_NaN()}), std::invalid_argument);
  EXPECT_EQ(Interference(2, {1, 2, Interference::kNeverShares, 4}).ratio(0, 1), 2);
  EXPECT_THROW(Interference(2, {1, 1, 1, 1}).add_model(), std::logic_error);
}

}  // namespace
}  // namespace torchshare
