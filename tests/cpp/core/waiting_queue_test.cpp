#include "cluster/waiting_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace torchshare {
namespace {

using ::testing::ElementsAre;

class WaitingQueueTest : public ::testing::Test {
 protected:
  void add(JobId job, double rank, int gpus, int model = 0) {
    queue_.insert(queue_.kind_of({0, 1, gpus, 0, model}), {0, rank}, job);
  }
  /// The jobs that `offer` offers if jobs of at most `most` GPUs are taken.
  std::vector<JobId> offered(int most) {
    std::vector<JobId> jobs;
    queue_.offer([&](JobId job) {
      jobs.push_back(job);
      const auto& [gpus, rank] = asked_.at(job);
      if (gpus > most) {
        return false;
      }
      queue_.erase(queue_.kind_of({0, 1, gpus, 0, 0}), {0, rank}, job);
      return true;
    });
    return jobs;
  }

  WaitingQueue queue_;
  std::map<JobId, std::pair<int, double>> asked_;
};

TEST_F(WaitingQueueTest, OffersByRankAndSkipsRequestsThatWereRefused) {
  asked_ = {{0, {4, 1.0}}, {1, {4, 2.0}}, {2, {8, 3.0}}, {3, {1, 4.0}}, {4, {1, 5.0}}, {5, {2, 0.5}}};
  for (const auto& [job, asked] : asked_) {
    add(job, asked.second, asked.first);
  }
  EXPECT_EQ(queue_.size(), 6U);
  EXPECT_THAT(offered(2), ElementsAre(5, 0, 3, 4));
  EXPECT_EQ(queue_.size(), 3U);
  EXPECT_THAT(offered(8), ElementsAre(0, 1, 2));
}

TEST_F(WaitingQueueTest, ARefusalDoesNotApplyToAnotherModel) {
  asked_ = {{0, {4, 1.0}}, {1, {8, 2.0}}};
  add(0, 1.0, 4);
  add(1, 2.0, 8, /*model=*/1);
  EXPECT_THAT(offered(0), ElementsAre(0, 1));
}

TEST_F(WaitingQueueTest, ARefusalAppliesToJobsThatNeedMoreMemory) {
  const auto kind = [&](double memory_gib) { return queue_.kind_of({0, 1, 1, memory_gib, 0}); };
  queue_.insert(kind(8), {0, 1}, 0);
  queue_.insert(kind(9), {0, 2}, 1);
  queue_.insert(kind(7), {0, 3}, 2);
  std::vector<JobId> jobs;
  queue_.offer([&](JobId job) {
    jobs.push_back(job);
    return false;
  });
  EXPECT_THAT(jobs, ElementsAre(0, 2));
}

TEST_F(WaitingQueueTest, ARefusalAppliesToJobsThatNeedNoLessInAnyNumberOfSubBatches) {
  const SplitModel asked{.fixed_memory = 0.5, .fixed_time = 0.1, .most = 4};
  const std::vector<WorkloadJob> jobs{
      {.memory_gib = 8, .split = asked},           {.memory_gib = 8, .split = {0.6, 0.2, 4}},  // more of both
      {.memory_gib = 8, .split = {0.4, 0.2, 4}},    // less memory in sub-batches
      {.memory_gib = 7, .split = {0.9, 0.2, 4}},    // less in whole batches
      {.memory_gib = 8, .split = {0.5, 0.05, 4}},   // less time
      {.memory_gib = 8, .split = {0.5, 0.1, 8}},    // in more sub-batches
      {.memory_gib = 10, .split = {0.45, 0.1, 2}},  // less would be in 8, which it does not run in
  };
  for (JobId job = 0; job < jobs.size(); ++job) {
    queue_.insert(queue_.kind_of(jobs[job]), {0, static_cast<double>(job)}, job);
  }
  std::vector<JobId> offered;
  queue_.offer([&](JobId job) {
    offered.push_back(job);
    return false;
  });
  EXPECT_THAT(offered, ElementsAre(0, 2, 3, 4, 5));
}

TEST_F(WaitingQueueTest, KnowsTheFirstOfAll) {
  EXPECT_EQ(queue_.first(), std::nullopt);
  add(0, 3.0, 1);
  add(1, 1.0, 2);
  EXPECT_EQ(queue_.first(), 1U);
}

TEST_F(WaitingQueueTest, ListsTheFirstOfEachKindByRank) {
  add(0, 3.0, 1);
  add(1, 1.0, 1);
  add(2, 2.0, 1);
  add(3, 0.5, 2);
  EXPECT_THAT(queue_.first_of_each_kind(2, 8), ElementsAre(3, 1, 2));
  EXPECT_THAT(queue_.first_of_each_kind(2, 1), ElementsAre(1, 2));
}

TEST(Rank, TheLowerLevelGoesFirst) {
  EXPECT_LT((Rank{0, 9}), (Rank{1, 1}));
  EXPECT_LT((Rank{1, 1}), (Rank{1, 2}));
}

}  // namespace
}  // namespace torchshare
