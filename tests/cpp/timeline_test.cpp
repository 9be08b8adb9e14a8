#include "runtime/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "runtime/timeline_file.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

Event step(std::uint32_t index) {
  return {index * 1us, index * 1us + 500ns, 0, EventKind::kStep, index, {}};
}

TEST(Timeline, KeepsTheNewestAndCountsDroppedEvents) {
  Timeline timeline(3);
  for (std::uint32_t i = 0; i < 5; ++i) {
    timeline.record(step(i));
  }
  const auto events = timeline.events();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events.front().number, 2U);
  EXPECT_EQ(events.back().number, 4U);
  EXPECT_EQ(timeline.dropped(), 2U);
}

TEST(Timeline, AMillionEventsStayUnderAHundredMebibytes) {
  EXPECT_LE(sizeof(Event) * 1'000'000, std::size_t{100} << 20);
}

TEST(Timeline, TakesEventsFromSeveralThreads) {
  Timeline timeline(100'000);
  const auto write = [&] {
    for (std::uint32_t i = 0; i < 10'000; ++i) {
      timeline.record(step(i));
    }
  };
  std::thread other(write);
  write();
  other.join();
  EXPECT_EQ(timeline.events().size(), 20'000U);
}

TEST(Timeline, PutsTheLogsOfAllJobsInOneOrder) {
  Timeline timeline(2);
  const auto first = timeline.open_log();
  const auto second = timeline.open_log();
  first->record(step(1));
  second->record(step(2));
  timeline.record(step(3));
  first->record(step(4));
  first->record(step(5));
  std::vector<std::uint64_t> order;
  for (const Event& event : timeline.events()) {
    order.push_back(event.number);
  }
  EXPECT_THAT(order, ::testing::ElementsAre(2, 3, 4, 5)) << "each log forgets its own oldest";
  EXPECT_EQ(timeline.dropped(), 1U);
}

TEST(Timeline, KeepsTheLogsOfTheLastJobsThatHaveEndedAndOfAllThatRun) {
  Timeline timeline(10, 2);
  const auto runs = timeline.open_log();
  runs->record(step(0));
  for (std::uint32_t i = 1; i <= 4; ++i) {
    const auto log = timeline.open_log();
    log->record(step(i));
    timeline.close_log(log);
    timeline.close_log(log);  // no second time
  }
  std::vector<std::uint64_t> kept;
  for (const Event& event : timeline.events()) {
    kept.push_back(event.number);
  }
  EXPECT_THAT(kept, ::testing::ElementsAre(0, 3, 4));
  EXPECT_EQ(timeline.dropped(), 2U);
}

TEST(Timeline, KeepsNoLogOfAnEndedJobIfNoneIsWanted) {
  Timeline timeline(10, 0);
  const auto log = timeline.open_log();
  log->record(step(1));
  timeline.close_log(log);
  log->record(step(2));  // of a thread that was left behind
  EXPECT_THAT(timeline.events(), ::testing::IsEmpty());
}

TEST(Timeline, TakesEventsOfJobsThatEndMeanwhile) {
  Timeline timeline(100, 3);
  const auto run_jobs = [&] {
    for (std::uint32_t i = 0; i < 500; ++i) {
      const auto log = timeline.open_log();
      log->record(step(i));
      timeline.close_log(log);
    }
  };
  std::thread other(run_jobs);
  for (int i = 0; i < 50; ++i) {
    EXPECT_LE(timeline.events().size(), 3U + 1);
  }
  run_jobs();
  other.join();
  EXPECT_EQ(timeline.events().size() + timeline.dropped(), 1000U);
}

TEST(Timeline, RefusesZeroCapacity) {
  EXPECT_THROW(Timeline(0), std::invalid_argument);
}

TEST(ChromeTrace, WritesSpansInstantsAndEscapedNames) {
  const std::string path = ::testing::TempDir() + "/trace.json";
  const std::vector<Event> events = {step(1),
                                     {1us, 2us, 0, EventKind::kWait, 0, "gate"},
                                     {1us, 2us, 0, EventKind::kMemory, 3 << 19, {}},
                                     {1us, 5us, 0, EventKind::kRequest, 1500, {}},
                                     {2us, 2us, 0, EventKind::kDecision, 0, "start: \"now\"\n"}};
  write_timeline_file(events, std::vector<std::string>{"a \\ b"}, path);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_THAT(
      text.str(),
      HasSubstr(R"({"name":"step","cat":"step","ph":"X","pid":0,"tid":0,"ts":0.000,"dur":0.500,"args":{"number":1}})"));
  EXPECT_THAT(text.str(), HasSubstr(R"({"name":"wait: gate","cat":"wait")"));
  EXPECT_THAT(text.str(), HasSubstr(R"({"name":"memory","ph":"C","pid":0,"ts":0.000,"args":{"MiB":1.500}})"));
  EXPECT_THAT(text.str(), HasSubstr(R"({"name":"request","cat":"request","ph":"b","id":3,"pid":0,"tid":5,"ts":0.000,)"
                                    R"("args":{"queued_ms":0.002}})"));
  EXPECT_THAT(text.str(),
              HasSubstr(R"({"name":"request","cat":"request","ph":"e","id":3,"pid":0,"tid":5,"ts":4.000,)"));
  EXPECT_THAT(text.str(), HasSubstr(R"("name":"start: \"now\"\u000a","cat":"decision","ph":"i")"));
  EXPECT_THAT(text.str(), HasSubstr(R"("args":{"name":"a \\ b"})"));
}

TEST(ChromeTrace, SaysWhyItCannotBeWritten) {
  EXPECT_THAT([] { write_timeline_file({}, {}, "/no/such/folder/trace.json"); },
              ::testing::ThrowsMessage<std::runtime_error>(HasSubstr("No such file or directory")));
}

}  // namespace
}  // namespace torchshare
