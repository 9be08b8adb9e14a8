#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>

#include <thread>

#include "device/cpu/cpu_device.h"
#include "device/cuda_status.h"
#include "device/fake/fake_device.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;

int scheduling_class() {
  return sched_getscheduler(0);  // of the calling thread
}

TEST(CpuDevice, LowersSecondariesToIdleAndGivesThePriorityBack) {
  CpuDevice device;
  std::thread([&] {
    const int former = scheduling_class();
    {
      const auto scope = device.enter({.priority = Priority::kSecondary});
      EXPECT_EQ(scheduling_class(), SCHED_IDLE);
    }
    EXPECT_EQ(scheduling_class(), former);
  }).join();
}

TEST(CpuDevice, LeavesThePrimaryAlone) {
  CpuDevice device;
  const int former = scheduling_class();
  const auto scope = device.enter({.priority = Priority::kPrimary});
  EXPECT_EQ(scheduling_class(), former);
}

TEST(CpuDevice, ThreadsStartedLaterInherit) {
  CpuDevice device;
  std::thread([&] {
    const auto scope = device.enter({.priority = Priority::kLowest});
    std::thread([] { EXPECT_EQ(scheduling_class(), SCHED_IDLE); }).join();
  }).join();
}

TEST(SteadyClock, WaitsUntilTheDeadline) {
  SteadyClock clock;
  std::mutex mutex;
  std::condition_variable never_notified;
  std::unique_lock lock(mutex);
  const auto deadline = clock.now() + 5ms;
  while (clock.now() < deadline) {
    clock.wait_until(never_notified, lock, deadline);
  }
  EXPECT_TRUE(lock.owns_lock());
}

TEST(ManualClock, StandsStillUntilMoved) {
  ManualClock clock;
  const auto before = clock.now();
  std::this_thread::sleep_for(2ms);
  EXPECT_EQ(clock.now(), before);
  clock.advance(3ns);
  EXPECT_EQ(clock.now(), before + 3ns);
}

TEST(FakeDevice, WritesDownWhoHoldsWhichPriority) {
  FakeDevice device;
  {
    const auto scope = device.enter({.priority = Priority::kSecondary});
    EXPECT_EQ(device.held().at(std::this_thread::get_id()), Priority::kSecondary);
  }
  EXPECT_TRUE(device.held().empty());
}

TEST(CudaStatus, SaysWhatItWasBuiltWith) {
  EXPECT_THAT(cuda_status(), ::testing::StartsWith("built with"));
}

TEST(MakeDevice, TakesAGpuWhereThereIsOne) {
  EXPECT_EQ(make_device("auto")->name(), cuda_device_count() > 0 ? "cuda:0" : "cpu");
  EXPECT_EQ(make_device("cpu")->name(), "cpu");
}

TEST(MakeDevice, SaysWhyThereIsNoGpu) {
  EXPECT_THAT([] { make_device("cuda:99"); },
              ::testing::ThrowsMessage<std::invalid_argument>(::testing::AllOf(
                  ::testing::HasSubstr("device 'cuda:99': expected"), ::testing::HasSubstr(cuda_status()))));
}

TEST(FakeStream, ComesToAMarkWhenTheWorkBeforeItIsDone) {
  ManualClock clock;
  FakeStream stream(clock);
  stream.launch(3ms);
  const auto first = stream.mark();
  stream.launch(2ms);
  const auto second = stream.mark();
  EXPECT_LT(stream.passed(), first);
  clock.advance(3ms);
  EXPECT_EQ(stream.passed(), first);
  clock.advance(2ms);
  EXPECT_EQ(stream.passed(), second);
}

TEST(MakeDevice, RefusesUnknownNames) {
  EXPECT_THROW(make_device("cuda:"), std::invalid_argument);
  EXPECT_THROW(make_device("cuda:1x"), std::invalid_argument);
  EXPECT_THAT([] { make_device("tpu"); },
              ::testing::ThrowsMessage<std::invalid_argument>(::testing::HasSubstr("device 'tpu': expected")));
}

}  // namespace
}  // namespace torchshare
