#include "sharing/job_records.h"

#include <gtest/gtest.h>

namespace torchshare {
namespace {

std::shared_ptr<const JobRecord> job(JobId id, const char* name, Priority priority = Priority::kSecondary) {
  return std::make_shared<const JobRecord>(JobRecord{.id = id, .name = name, .priority = priority, .start = {}});
}

TEST(JobRecords, TheLastJobOfANameIsFound) {
  JobRecords records;
  const auto first = job(0, "a"), second = job(1, "a");
  EXPECT_TRUE(records.add(first).empty());
  EXPECT_EQ(records.add(second).mapped(), first);
  EXPECT_EQ(records.find("a"), second.get());
  EXPECT_EQ(records.find("b"), nullptr);
  EXPECT_EQ(records.size(), 1U);
}

TEST(JobRecords, TheFirstOfTheHighestPriorityIsFoundBesideAnother) {
  JobRecords records;
  const auto low = job(0, "low"), high = job(1, "high", Priority::kPrimary), later = job(2, "x", Priority::kPrimary);
  EXPECT_EQ(records.first_beside(*low), nullptr);
  for (const auto& each : {low, later, high}) {
    records.add(each);
  }
  EXPECT_EQ(records.first_beside(*low), high.get());
  EXPECT_EQ(records.first_beside(*high), later.get());
}

TEST(JobRecords, AJobThatIsRemovedGivesItsNameBack) {
  JobRecords records;
  const auto first = job(0, "a", Priority::kPrimary), second = job(1, "a"), other = job(2, "b");
  records.add(first);
  records.add(other);
  records.remove(*second, {});  // it was never added
  records.remove(*second, records.add(second));
  EXPECT_EQ(records.find("a"), first.get());
  EXPECT_EQ(records.first_beside(*other), first.get());
  records.add(second);
  records.remove(*first, {});  // it has lost its name
  EXPECT_EQ(records.find("a"), second.get());
  records.remove(*second, {});
  EXPECT_EQ(records.find("a"), nullptr);
  EXPECT_EQ(records.first_beside(*other), nullptr);
}

}  // namespace
}  // namespace torchshare
