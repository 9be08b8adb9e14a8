#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <future>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/cpu/child_processes.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_load.h"
#include "device/cpu/low_priority.h"
#include "device/cuda_status.h"
#include "fakes/fake_device.h"

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
      const auto priority = device.thread_priority(Priority::kSecondary, DevicePriority::kIdle);
      const PriorityScope scope(*priority);
      EXPECT_EQ(scheduling_class(), SCHED_IDLE);
    }
    EXPECT_EQ(scheduling_class(), former);
  }).join();
}

TEST(CpuDevice, LeavesThePrimaryAlone) {
  CpuDevice device;
  const int former = scheduling_class();
  const auto priority = device.thread_priority(Priority::kPrimary, DevicePriority::kIdle);
  const PriorityScope scope(*priority);
  EXPECT_EQ(scheduling_class(), former);
}

TEST(CpuDevice, ThreadsStartedLaterInherit) {
  CpuDevice device;
  std::thread([&] {
    const auto priority = device.thread_priority(Priority::kLowest, DevicePriority::kIdle);
    const PriorityScope scope(*priority);
    std::thread([] { EXPECT_EQ(scheduling_class(), SCHED_IDLE); }).join();
  }).join();
}

/// A thread of idle priority and a worker that it started.
class LowPriorityTest : public ::testing::Test {
 protected:
  LowPriorityTest() {
    if (!may_raise_priority()) {
      return;
    }
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "ts-test-idle");
      const PriorityScope scope(priority_);
      id_ = gettid();
      std::thread worker([this] {
        worker_ = gettid();
        there_.count_down();
        done_.wait();
      });
      done_.wait();
      worker.join();
    });
    there_.wait();
  }
  void SetUp() override {
    if (!may_raise_priority()) {
      GTEST_SKIP() << "no CAP_SYS_NICE and no RLIMIT_NICE";
    }
  }
  ~LowPriorityTest() override {
    done_.count_down();
    if (thread_.joinable()) {
      thread_.join();
    }
  }
  bool is_idle() const { return sched_getscheduler(id_) == SCHED_IDLE; }
  bool worker_is_idle() const { return sched_getscheduler(worker_) == SCHED_IDLE; }

  LowPriority priority_{DevicePriority::kIdle};
  std::atomic<int> id_{0};
  std::atomic<int> worker_{0};
  std::latch there_{1};
  std::latch done_{1};
  std::thread thread_;
};

TEST_F(LowPriorityTest, IsRaisedByOthersUntilAsManyHaveLoweredIt) {
  EXPECT_TRUE(is_idle());
  priority_.raise();
  priority_.raise();
  EXPECT_FALSE(is_idle());
  priority_.lower();
  EXPECT_FALSE(is_idle());
  priority_.lower();
  EXPECT_TRUE(is_idle());
  EXPECT_TRUE(worker_is_idle());
}

TEST_F(LowPriorityTest, IsOrdinaryWithItsWorkersWhileUnopposed) {
  priority_.set_unopposed(true);
  EXPECT_FALSE(is_idle());
  EXPECT_FALSE(worker_is_idle());
  priority_.set_unopposed(false);
  EXPECT_TRUE(is_idle());
  EXPECT_TRUE(worker_is_idle());
}

TEST_F(LowPriorityTest, IsRaisedForGoodWithItsWorkers) {
  priority_.raise_for_good();
  priority_.lower();
  EXPECT_FALSE(is_idle());
  EXPECT_FALSE(worker_is_idle());
}

TEST(LowPriority, LowersWhatItsThreadHasStartedWhileItWasRaised) {
  if (!may_raise_priority()) {
    GTEST_SKIP() << "no CAP_SYS_NICE and no RLIMIT_NICE";
  }
  for (const bool by_other : {false, true}) {
    std::thread([&] {
      pthread_setname_np(pthread_self(), "ts-test-raised");
      LowPriority priority(DevicePriority::kIdle);
      const PriorityScope scope(priority);
      const auto change = [&](void (ThreadPriority::*how)()) {
        by_other ? std::thread([&] { (priority.*how)(); }).join() : (priority.*how)();
      };
      std::latch there{1};
      std::latch done{1};
      std::atomic<int> started{0};
      change(&ThreadPriority::raise);
      std::thread thread([&] {
        started = gettid();
        there.count_down();
        done.wait();
      });
      there.wait();
      EXPECT_EQ(sched_getscheduler(started), SCHED_OTHER);
      change(&ThreadPriority::lower);
      EXPECT_EQ(sched_getscheduler(started), SCHED_IDLE) << by_other;
      EXPECT_EQ(scheduling_class(), SCHED_IDLE) << by_other;
      done.count_down();
      thread.join();
    }).join();
  }
}

TEST(LowPriority, OfNiceIsOrdinaryTimeWithASmallerShare) {
  std::thread([] {
    const int former = getpriority(PRIO_PROCESS, 0);
    const int lowered = std::min(former + 10, 19);  // the tests may run under nice
    LowPriority priority(DevicePriority::kNice);
    {
      const PriorityScope scope(priority);
      EXPECT_EQ(scheduling_class(), SCHED_OTHER);
      EXPECT_EQ(getpriority(PRIO_PROCESS, 0), lowered);
      if (may_raise_priority()) {
        priority.raise();
        EXPECT_EQ(getpriority(PRIO_PROCESS, 0), former);
        priority.lower();
        EXPECT_EQ(getpriority(PRIO_PROCESS, 0), lowered);
      }
      EXPECT_TRUE(priority.waited().has_value());
    }
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), may_raise_priority() ? former : lowered);
    EXPECT_FALSE(priority.waited().has_value());
  }).join();
}

TEST(LowPriority, OfAutoIsOneOfTheTwo) {
  std::thread([] {
    const int former = getpriority(PRIO_PROCESS, 0);
    LowPriority priority(DevicePriority::kAuto);
    const PriorityScope scope(priority);
    EXPECT_NE(scheduling_class() == SCHED_IDLE, getpriority(PRIO_PROCESS, 0) > former);
  }).join();
}

TEST(CpuLoad, CountsTheProcessorsThatThisProcessMayUse) {
  const std::string stat =
      "cpu  999 0 0 999 0 0 0 0 0 0\ncpu0 100 20 30 4000 500 6 7 80 0 0\ncpu1 1 0 0 9 0 0 0 0 0 0\nintr 5\n";
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(0, &set);
  const auto tick = std::chrono::nanoseconds(1s) / sysconf(_SC_CLK_TCK);
  EXPECT_EQ(busy_time(stat, set), 163 * tick) << "neither idle nor stolen";
  CPU_SET(1, &set);
  EXPECT_EQ(busy_time(stat, set), 164 * tick);
}

TEST(CpuLoad, IsBusyWhereNoProcessorIsLeftForASecondJob) {
  EXPECT_FALSE(is_busy(0.2, 1));
  EXPECT_TRUE(is_busy(0.6, 1));
  EXPECT_FALSE(is_busy(0.4, 2));
  EXPECT_TRUE(is_busy(1.0, 2));
  EXPECT_FALSE(is_busy(2.0, 16));
  EXPECT_TRUE(is_busy(15.0, 16));
}

TEST_F(LowPriorityTest, TellsTheTimeThatItsThreadUsed) {
  auto used = priority_.used();
  ASSERT_TRUE(used.has_value());
  EXPECT_GT(*used, 0ns);
  for (auto before = used; (used = priority_.used()) != before; before = used) {  // until it waits
    std::this_thread::sleep_for(5ms);
  }
}

TEST(LowPriority, AThreadThatHasEndedCannotBeReached) {
  LowPriority priority(DevicePriority::kIdle);
  EXPECT_FALSE(priority.used().has_value());
  priority.raise_for_good();
  std::thread([&] {
    const PriorityScope scope(priority);
    EXPECT_EQ(scheduling_class() == SCHED_IDLE, !may_raise_priority()) << "it was raised before it came";
  }).join();
  EXPECT_FALSE(priority.used().has_value());
  priority.raise();
}

/// What /proc/self/task lists.
std::vector<int> threads_of_this_process() {
  std::vector<int> threads;
  for_each_thread("self", [&](const std::string& thread) { threads.push_back(std::stoi(thread)); });
  return threads;
}

/// Calls on a new thread of two intra-op threads, with the worker that it has started.
void on_thread_with_worker(const std::function<void(int)>& call) {
  std::thread([&] {
    at::set_num_threads(2);
    const auto before = threads_of_this_process();
    at::zeros({1 << 20});
    std::vector<int> started = threads_of_this_process();
    std::erase_if(started, [&](int thread) { return std::ranges::count(before, thread) > 0; });
    ASSERT_EQ(started.size(), 1U);
    call(started.front());
  }).join();
}

std::string own_name() {
  return name_of_thread("self", std::to_string(gettid()));
}

TEST(LentThread, HasTheJobsPriorityWithTheWorkersThatItHadBefore) {
  if (!may_raise_priority()) {
    GTEST_SKIP() << "no CAP_SYS_NICE and no RLIMIT_NICE";
  }
  on_thread_with_worker([](int worker) {
    const auto both = [&] { return std::pair(scheduling_class(), sched_getscheduler(worker)); };
    const std::string name = own_name();
    LowPriority priority(DevicePriority::kIdle, true);
    for (int call = 0; call < 2; ++call) {
      const PriorityScope scope(priority);
      EXPECT_EQ(both(), std::pair(SCHED_IDLE, SCHED_IDLE));
      priority.set_unopposed(true);
      EXPECT_EQ(both(), std::pair(SCHED_OTHER, SCHED_OTHER));
      priority.set_unopposed(false);
      EXPECT_EQ(both(), std::pair(SCHED_IDLE, SCHED_IDLE));
    }
    EXPECT_EQ(both(), std::pair(SCHED_OTHER, SCHED_OTHER));
    EXPECT_EQ(own_name(), name);
    priority.set_unopposed(true);
    const PriorityScope unopposed(priority);
    EXPECT_EQ(both(), std::pair(SCHED_OTHER, SCHED_OTHER));
  });
}

TEST(LentThread, GivesWhatItHasStartedOrdinaryPriorityAtItsEnd) {
  if (!may_raise_priority()) {
    GTEST_SKIP() << "no CAP_SYS_NICE and no RLIMIT_NICE";
  }
  std::thread([] {
    std::latch there{1};
    std::latch done{1};
    int started = 0;
    std::thread thread;
    pid_t process = 0;
    std::latch ends{1};
    std::thread other([&] { ends.wait(); });  // their number is the same before and after
    {
      LowPriority priority(DevicePriority::kIdle, true);
      const PriorityScope scope(priority);
      thread = std::thread([&] {
        started = gettid();
        there.count_down();
        done.wait();
      });
      std::string program = "sleep";
      std::string seconds = "60";
      const std::array<char*, 3> command{program.data(), seconds.data(), nullptr};
      ASSERT_EQ(posix_spawnp(&process, program.c_str(), nullptr, nullptr, command.data(), environ), 0);
      there.wait();
      ends.count_down();
      other.join();
      EXPECT_EQ(sched_getscheduler(started), SCHED_IDLE);
      EXPECT_EQ(sched_getscheduler(process), SCHED_IDLE);
    }
    EXPECT_EQ(sched_getscheduler(started), SCHED_OTHER);
    EXPECT_EQ(sched_getscheduler(process), SCHED_OTHER);
    done.count_down();
    thread.join();
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }).join();
}

TEST(EventCount, LosesNoChange) {
  EventCount there;
  EventCount back;
  constexpr std::uint32_t kRounds = 20'000;
  std::thread other([&] {
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      while (there.value() == round) {
        there.wait(round, kNever);
      }
      back.notify_all();
    }
  });
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    there.notify_all();
    while (back.value() == round) {
      back.wait(round, kNever);
    }
  }
  other.join();
}

TEST(SteadyClock, WaitsUntilTheDeadline) {
  SteadyClock clock;
  EventCount never_notified;
  const auto deadline = clock.now() + 5ms;
  while (clock.now() < deadline) {
    clock.wait(never_notified, never_notified.value(), deadline);
  }
}

TEST(ManualClock, StandsStillUntilMoved) {
  ManualClock clock;
  const auto before = clock.now();
  std::this_thread::sleep_for(2ms);
  EXPECT_EQ(clock.now(), before);
  clock.advance(3ns);
  EXPECT_EQ(clock.now(), before + 3ns);
}

TEST(ManualClock, WakesAThreadWhenItsDeadlineComesAndNotBefore) {
  ManualClock clock;
  EventCount wake;
  auto woken = std::async(std::launch::async, [&] {
    clock.wait(wake, wake.value(), 10s);
    return clock.now();
  });
  while (clock.waiting() == 0) {
    std::this_thread::yield();
  }
  clock.advance(9s);
  clock.advance(1s);
  EXPECT_EQ(woken.get(), 10s);
}

TEST(ManualClock, WakesAThreadThatIsNotified) {
  ManualClock clock;
  EventCount wake;
  auto woken = std::async(std::launch::async, [&] { clock.wait(wake, wake.value(), kNever); });
  while (clock.waiting() == 0) {
    std::this_thread::yield();
  }
  wake.notify_all();
  woken.get();
  EXPECT_EQ(clock.waiting(), 0U);
}

TEST(FakeDevice, RecordsThePriorityOfEachThread) {
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

TEST(MakeDevice, TakesAGpuIfThereIsOne) {
  EXPECT_EQ(make_device("auto")->name(), cuda_device_count() > 0 ? "cuda:0" : "cpu");
  EXPECT_EQ(make_device("cpu")->name(), "cpu");
}

TEST(MakeDevice, SaysWhyThereIsNoGpu) {
  EXPECT_THAT([] { make_device("cuda:99"); },
              ::testing::ThrowsMessage<std::invalid_argument>(::testing::AllOf(
                  ::testing::HasSubstr("device must be one of 0 GPUs"), ::testing::HasSubstr(cuda_status()))));
}

TEST(FakeStream, ReachesAMarkerWhenTheWorkBeforeItIsDone) {
  ManualClock clock;
  FakeStream stream(clock);
  stream.launch(3ms);
  const auto first = stream.record_marker();
  stream.launch(2ms);
  const auto second = stream.record_marker();
  EXPECT_LT(stream.passed(), first);
  clock.advance(3ms);
  EXPECT_EQ(stream.passed(), first);
  clock.advance(2ms);
  EXPECT_EQ(stream.passed(), second);
}

TEST(MakeDevice, RefusesUnknownNames) {
  EXPECT_THROW(make_device("cuda:"), std::invalid_argument);
  EXPECT_THROW(make_device("cuda:1x"), std::invalid_argument);
  EXPECT_THAT([] { make_device("tpu"); }, ::testing::ThrowsMessage<std::invalid_argument>(::testing::HasSubstr(
                                              "device must be 'auto', 'cpu', 'cuda' or 'cuda:<n>', got 'tpu'")));
}

}  // namespace
}  // namespace torchshare
