#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/split.h"
#include "torchshare/values.h"

namespace torchshare {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Priority, ReadsBackWhatItWrites) {
  for (int level = 0; level <= static_cast<int>(Priority::kLowest); ++level) {
    const auto priority = static_cast<Priority>(level);
    EXPECT_EQ(parse_priority(to_string(priority)), priority);
  }
  EXPECT_EQ(parse_priority("level-0"), Priority::kPrimary);
  EXPECT_TRUE(outranks(Priority::kPrimary, Priority::kSecondary));
  EXPECT_FALSE(outranks(Priority::kSecondary, Priority::kSecondary));
}

TEST(Priority, RefusesOtherWords) {
  for (const char* text : {"", "high", "level-", "level-10", "level-x", "3"}) {
    EXPECT_THAT([&] { parse_priority(text); }, ThrowsMessage<std::invalid_argument>(HasSubstr("must be 'primary'")));
  }
}

TEST(JobState, EndedJobsStayEnded) {
  for (const JobState from : {JobState::kFinished, JobState::kFailed, JobState::kCancelled}) {
    EXPECT_TRUE(is_terminal(from));
    for (int to = 0; to <= static_cast<int>(JobState::kCancelled); ++to) {
      EXPECT_FALSE(can_become(from, static_cast<JobState>(to)));
    }
  }
}

TEST(JobState, RunsOnlyFromItsStartOrASuspension) {
  EXPECT_TRUE(can_become(JobState::kPending, JobState::kDelayed));
  EXPECT_TRUE(can_become(JobState::kDelayed, JobState::kRunning));
  EXPECT_TRUE(can_become(JobState::kRunning, JobState::kSuspended));
  EXPECT_TRUE(can_become(JobState::kSuspended, JobState::kRunning));
  EXPECT_FALSE(can_become(JobState::kDelayed, JobState::kSuspended));
  EXPECT_FALSE(can_become(JobState::kPending, JobState::kFinished));
  EXPECT_FALSE(can_become(JobState::kSuspended, JobState::kFinished));
}

TEST(SplitRows, CoversTheBatchInOrder) {
  for (std::int64_t batch = 1; batch <= 20; ++batch) {
    for (std::int64_t piece = 1; piece <= batch + 2; ++piece) {
      std::int64_t next = 0;
      for (const Rows& rows : split_rows(batch, piece)) {
        EXPECT_EQ(rows.begin, next);
        EXPECT_LE(rows.end - rows.begin, piece);
        EXPECT_LT(rows.begin, rows.end);
        next = rows.end;
      }
      EXPECT_EQ(next, batch);
    }
  }
}

TEST(SplitRows, RefusesNothingToSplit) {
  EXPECT_THAT([] { split_rows(0, 1); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("batch must have at least 1 row, got 0")));
  EXPECT_THAT([] { split_rows(4, 0); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("sub_batch must be at least 1, got 0")));
}

}  // namespace
}  // namespace torchshare
