#include "sharing/predecessors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharing/job_records.h"
#include "sharing/start_rules.h"

namespace torchshare {
namespace {

using ::testing::ThrowsMessage;

/// Jobs that start "now", in order of submission.
class Workflow {
 public:
  JobRecord& add(const std::string& name, const std::vector<std::string>& after = {}) {
    const auto id = static_cast<JobId>(jobs_.size());
    jobs_.push_back(std::make_shared<JobRecord>(JobRecord{id, name, Priority::kSecondary, parse_start("now")}));
    for (const std::string& text : after) {
      jobs_.back()->after.push_back(parse_predecessor(text));
    }
    records_.add(jobs_.back());
    return *jobs_.back();
  }
  void check() {
    for (const auto& job : jobs_) {
      bind_predecessors(*job, records_);
    }
    StartCheck starts(records_);
    for (const auto& job : jobs_) {
      starts.check(*job);
    }
  }

 private:
  std::vector<std::shared_ptr<JobRecord>> jobs_;
  JobRecords records_;
};

TEST(Predecessors, EachFormIsRead) {
  EXPECT_EQ(parse_predecessor("a b").name, "a b");
  EXPECT_EQ(parse_predecessor("any:ok:a").name, "ok:a");
  EXPECT_FALSE(parse_predecessor("any:ok:a").must_finish);
  EXPECT_EQ(parse_predecessor("ok:a").name, "a");
  EXPECT_TRUE(parse_predecessor("ok:a").must_finish);
  EXPECT_EQ(parse_predecessor("afterok:a").name, "a");
  EXPECT_TRUE(parse_predecessor("afterok:a").must_finish);
  EXPECT_EQ(parse_predecessor("afterany:ok:a").name, "ok:a");
  EXPECT_FALSE(parse_predecessor("afterany:ok:a").must_finish);
  for (const char* const text : {"", "ok:", "any:"}) {
    EXPECT_THROW(parse_predecessor(text), std::invalid_argument);
  }
}

TEST(Predecessors, AllMustHaveEnded) {
  Workflow workflow;
  JobRecord& a = workflow.add("a");
  JobRecord& b = workflow.add("b");
  const JobRecord& c = workflow.add("c", {"a", "ok:b"});
  EXPECT_FALSE(have_ended(c.after));  // not bound
  workflow.check();
  a.state = JobState::kFailed;
  EXPECT_FALSE(have_ended(c.after));
  EXPECT_EQ(find_broken(c.after), nullptr);
  b.state = JobState::kFinished;
  EXPECT_TRUE(have_ended(c.after));
  EXPECT_EQ(find_broken(c.after), nullptr);
  EXPECT_EQ(ends_of(c.after), "'a' failed, 'b' finished");
}

TEST(Predecessors, OneThatHadToFinishBreaksAtItsEnd) {
  Workflow workflow;
  workflow.add("a");
  JobRecord& b = workflow.add("b");
  const JobRecord& c = workflow.add("c", {"a", "ok:b"});
  workflow.check();
  for (const JobState end : {JobState::kFailed, JobState::kCancelled}) {
    b.state = JobState::kSuspended;
    EXPECT_EQ(find_broken(c.after), nullptr);
    b.state = end;
    ASSERT_NE(find_broken(c.after), nullptr);
    EXPECT_EQ(find_broken(c.after)->name, "b");
  }
}

TEST(Predecessors, TheJobThatWasBoundStaysIfAnotherGetsItsName) {
  Workflow workflow;
  JobRecord& a = workflow.add("a");
  const JobRecord& b = workflow.add("b", {"ok:a"});
  workflow.check();
  a.state = JobState::kFinished;
  workflow.add("a").state = JobState::kFailed;
  workflow.check();
  EXPECT_TRUE(have_ended(b.after));
  EXPECT_EQ(find_broken(b.after), nullptr);
}

TEST(Predecessors, UnknownJobsTheJobItselfAndCyclesAreRefused) {
  const auto refused = [](Workflow& workflow, const char* says) {
    EXPECT_THAT([&] { workflow.check(); }, ThrowsMessage<std::invalid_argument>(says));
  };
  Workflow unknown;
  unknown.add("a", {"ok:b"});
  refused(unknown, "job 'a': after names job 'b', which this runtime does not have");
  Workflow itself;
  itself.add("a", {"a"});
  refused(itself, "job 'a': after names the job itself");
  Workflow cycle;
  cycle.add("out", {"b"});
  cycle.add("a", {"out", "c"});
  cycle.add("b", {});
  cycle.add("c", {"b", "d"});
  cycle.add("d", {"b", "ok:a"});
  refused(cycle, "jobs wait for each other to start: 'a' -> 'c' -> 'd' -> 'a'");
}

}  // namespace
}  // namespace torchshare
