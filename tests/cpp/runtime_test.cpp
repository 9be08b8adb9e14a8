#include "torchshare/runtime.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <latch>
#include <map>

#include "device/cpu/cpu_device.h"
#include "device/cpu/low_priority.h"
#include "fakes/fake_device.h"
#include "fakes/unknown_call.h"
#include "runtime/forks.h"
#include "runtime/job.h"
#include "runtime/job_thread.h"
#include "runtime/runtime_state.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

/// A small training in plain LibTorch; returns the weights.
at::Tensor train(Job& job, int steps) {
  at::Tensor weights = at::randn({16, 16}).requires_grad_();
  for (int i = 0; i < steps; ++i) {
    job.yield_point();
    job.begin_step();
    const at::Tensor loss = at::dropout(at::tanh(at::mm(at::randn({8, 16}), weights)), 0.3, true).pow(2).mean();
    loss.backward();
    const c10::AutoGradMode no_grad(false);
    weights.sub_(weights.grad(), 0.1);
    weights.mutable_grad().reset();
    job.end_step();
  }
  return weights.detach();
}

void run_ops_for_ever(Job&) {
  at::Tensor x = at::ones({4});
  while (true) {
    x.add_(1);
  }
}

void wait_for_ops(const Job& job, std::uint64_t ops) {
  while (job.stats().ops < ops) {
    std::this_thread::sleep_for(1ms);
  }
}

JobSpec secondary(const std::string& name, const std::string& start = "now") {
  return {.name = name, .priority = Priority::kSecondary, .start = start};
}

JobSpec primary(const std::string& name) {
  return {.name = name, .priority = Priority::kPrimary};
}

class EveryPolicy : public ::testing::TestWithParam<std::string> {
 protected:
  Runtime runtime_{std::make_shared<CpuDevice>(), {.policy = GetParam()}};
};

TEST_P(EveryPolicy, GivesBothJobsTheWeightsTheyHaveAlone) {
  constexpr int kSteps = 40;
  at::Tensor alone;
  {
    Runtime solo(std::make_shared<CpuDevice>());
    solo.submit(primary("alone"), [&](Job& job) { alone = train(job, kSteps); });
    solo.start();
    ASSERT_TRUE(solo.wait(30s));
  }
  at::Tensor first;
  at::Tensor second;
  runtime_.submit(primary("first"), [&](Job& job) { first = train(job, kSteps); });
  runtime_.submit(secondary("second"), [&](Job& job) { second = train(job, kSteps); });
  runtime_.start();
  ASSERT_TRUE(runtime_.wait(30s));
  EXPECT_TRUE(at::equal(alone, first));
  EXPECT_TRUE(at::equal(alone, second));
}

TEST_P(EveryPolicy, SuspendsResumesAndCancelsWithinAnOp) {
  auto busy = runtime_.submit(primary("busy"), run_ops_for_ever);
  runtime_.start();
  wait_for_ops(*busy, 100);
  busy->suspend();
  while (busy->state() != JobState::kSuspended) {
    std::this_thread::sleep_for(1ms);
  }
  const auto ops = busy->stats().ops;
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(busy->stats().ops, ops);
  busy->resume();
  wait_for_ops(*busy, ops + 100);
  busy->cancel();
  EXPECT_TRUE(runtime_.wait(5s));
  EXPECT_EQ(busy->state(), JobState::kCancelled);
}

TEST_P(EveryPolicy, CancelReachesASuspendedJobAndOneThatSleeps) {
  auto suspended = runtime_.submit(primary("suspended"), run_ops_for_ever);
  auto asleep = runtime_.submit(secondary("asleep"), [](Job& job) { job.sleep(kNever); });
  suspended->suspend();
  runtime_.start();
  while (suspended->state() != JobState::kSuspended || asleep->state() != JobState::kRunning) {
    std::this_thread::sleep_for(1ms);
  }
  runtime_.cancel_all();
  EXPECT_TRUE(runtime_.wait(5s));
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, ::testing::Values("priority", "strict", "best_fit"),
                         [](const auto& info) { return info.param; });

TEST(Runtime, KeepsASecondaryOutWhileTheFakePrimaryIsInsideAnOp) {
  auto device = std::make_shared<FakeDevice>();
  Runtime runtime(device, {.policy = "strict", .gate = {.grace = 1s}});
  std::latch inside(1);
  std::latch release(1);
  runtime.submit(primary("primary"), [&](Job& job) {
    const Permit permit(&runtime_job(job), UnknownCall());
    inside.count_down();
    release.wait();
  });
  runtime.start();
  inside.wait();  // otherwise the secondary might end before
  auto lower = runtime.submit(secondary("secondary"), [](Job&) { at::ones({4}); });
  while (device->held().size() < 2) {
    std::this_thread::sleep_for(1ms);
  }
  device->clock().advance(10s);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(lower->stats().ops, 0U);
  release.count_down();
  EXPECT_TRUE(runtime.wait(kNever));
  EXPECT_EQ(lower->stats().ops, 1U);
}

TEST(Runtime, AFailureStaysInItsJob) {
  Runtime runtime(std::make_shared<CpuDevice>());
  auto bad = runtime.submit(primary("bad"), [](Job&) { at::ones({2}).view({3}); });
  auto good = runtime.submit(secondary("good"), [](Job& job) { train(job, 5); });
  runtime.start();
  EXPECT_TRUE(runtime.wait(30s));
  EXPECT_EQ(bad->state(), JobState::kFailed);
  EXPECT_THAT(bad->error(), HasSubstr("shape '[3]' is invalid"));
  EXPECT_EQ(good->state(), JobState::kFinished);
  EXPECT_EQ(good->stats().steps, 5U);
}

TEST(Runtime, ForgetsJobsThatHaveEnded) {
  Runtime runtime(std::make_shared<CpuDevice>(), {.max_concurrent = 2, .keep = 5});
  std::vector<std::weak_ptr<Job>> jobs;
  for (int i = 0; i < 300; ++i) {
    jobs.push_back(runtime.submit({.name = std::to_string(i)}, [](Job& job) { train(job, 1); }));
  }
  runtime.start();
  EXPECT_TRUE(runtime.wait(60s));
  // The last one to end may still be at its end, and it alone is not joined.
  const auto live = [&] {
    return std::count_if(jobs.begin(), jobs.end(), [](const auto& job) { return !job.expired(); });
  };
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (live() > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(live(), 0);
  RuntimeState& state = runtime.state();
  EXPECT_EQ(state.coordinator.size(), 0U);
  std::map<JobId, int> steps;
  for (const Event& event : state.timeline.events()) {
    steps[event.job] += event.kind == EventKind::kStep ? 1 : 0;
  }
  EXPECT_EQ(std::count_if(steps.begin(), steps.end(), [](const auto& job) { return job.second == 1; }), 5);
  auto late = runtime.submit({.name = "late", .start = "after:7"}, [](Job& job) { train(job, 1); });
  EXPECT_TRUE(runtime.wait(30s));
  EXPECT_EQ(late->state(), JobState::kFinished);
}

TEST(Runtime, OnlyJobsThatRunOwnMemory) {
  Runtime runtime(std::make_shared<CpuDevice>(), {.max_concurrent = 1});
  std::atomic<int> cached = 0;
  const auto body = [&](Job&) {
    at::ones({1 << 20});
    const MemoryOwner* const owner = memory_owner(c10::DeviceType::CPU);
    cached += owner != nullptr && owner->is_identified() && owner->caches() ? 1 : 0;
  };
  for (int i = 0; i < 150; ++i) {  // more than there are owners
    runtime.submit({.name = std::to_string(i)}, body);
  }
  std::vector<std::shared_ptr<Job>> cancelled;  // before they begin
  for (int i = 0; i < 100; ++i) {
    cancelled.push_back(runtime.submit({.name = "never " + std::to_string(i), .start = "1000"}, body));
  }
  runtime.start();
  for (const auto& job : cancelled) {
    job->cancel();
  }
  EXPECT_TRUE(runtime.wait(60s));
  EXPECT_EQ(cached, 150);
}

TEST(Runtime, TheGateIsClosedAfterAWaitInsideAnother) {
  Runtime runtime(std::make_shared<CpuDevice>());
  std::vector<bool> idle;
  auto job = runtime.submit(primary("a"), [&](Job& job) {
    const auto is_idle = [&] { return runtime_job(job).slot().idle.load(); };
    {
      const WaitForRanks outer;
      idle.push_back(is_idle());
      { const WaitForRanks inner; }
      idle.push_back(is_idle());
    }
    idle.push_back(is_idle());
    job.begin_input();
    { const WaitForRanks in_input; }
    idle.push_back(is_idle());
    job.end_input();
    idle.push_back(is_idle());
  });
  runtime.start();
  EXPECT_TRUE(runtime.wait(30s));
  EXPECT_EQ(idle, (std::vector<bool>{true, true, false, true, false}));
}

TEST(Runtime, LeavesBehindAJobThatIsBlockedElsewhere) {
  const auto release = std::make_shared<std::latch>(1);  // the thread outlives its runtime
  {
    Runtime runtime(std::make_shared<CpuDevice>());
    auto blocked = runtime.submit(primary("blocked"), [release](Job&) { release->wait(); });
    runtime.start();
    while (blocked->state() != JobState::kRunning) {
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_THAT(runtime.close(10ms), ::testing::ElementsAre("blocked"));
    EXPECT_EQ(blocked->state(), JobState::kCancelled);
  }
  release->count_down();
}

TEST(Runtime, UnwindsAGivenUpJobAtItsNextOp) {
  const auto release = std::make_shared<std::latch>(1);
  const auto unwound = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<Job> blocked;
  {
    Runtime runtime(std::make_shared<CpuDevice>(), {.policy = "best_fit"});
    blocked = runtime.submit(primary("blocked"), [release, unwound](Job& job) {
      at::ones({4});
      release->wait();
      for (int i = 0; i < 3; ++i) {
        try {
          at::ones({4});
        } catch (const Cancelled&) {
          ++*unwound;
        }
      }
      job.end_step();
    });
    runtime.start();
    while (blocked->stats().ops == 0) {
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_THAT(runtime.close(10ms), ::testing::ElementsAre("blocked"));
  }
  EXPECT_FALSE(runtime_job(*blocked).has_left()) << "its ops are not to be read yet";
  EXPECT_FALSE(runtime_job(*blocked).is_in_body()) << "and its steps do not count";
  release->count_down();
  while (!runtime_job(*blocked).has_left()) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(unwound->load(), 3);
  EXPECT_EQ(blocked->state(), JobState::kCancelled);
  EXPECT_EQ(runtime_job(*blocked).watch()->stats().ops, 1U);
}

/// A CPU device that cannot count memory.
class Uncountable final : public Device {
 public:
  std::string_view name() const override { return "uncountable"; }
  Clock& clock() override { return clock_; }
  void install_memory() override { throw std::runtime_error("no allocator"); }
  std::unique_ptr<DeviceScope> enter(const DeviceRequest&) override { return std::make_unique<DeviceScope>(); }

 private:
  SteadyClock clock_;
};

TEST(Runtime, KeepsNothingOfAJobThatCouldNotBeCreated) {
  Runtime runtime(std::make_shared<Uncountable>());
  EXPECT_THROW(runtime.submit({.name = "a", .meter_memory = true}, [](Job&) {}), std::runtime_error);
  auto job = runtime.submit({.name = "a", .cache_memory = false}, [](Job&) {});
  runtime.start();
  EXPECT_TRUE(runtime.wait(10s));
  EXPECT_EQ(job->state(), JobState::kFinished);
}

TEST(Runtime, NoJobIsAddedOrStartedOnceItIsClosing) {
  Runtime runtime(std::make_shared<CpuDevice>());
  std::latch running(1);
  auto job = runtime.submit(primary("holds it open"), [&](Job& job) {
    running.count_down();
    while (!job.cancel_requested()) {
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_THROW(runtime.submit(secondary("late"), run_ops_for_ever), std::logic_error);
  });
  runtime.start();
  running.wait();  // a job that is cancelled before its body begins ends as cancelled
  EXPECT_TRUE(runtime.close(10s).empty());
  EXPECT_EQ(job->state(), JobState::kFinished);
}

TEST(Runtime, RefusesToOpenInsideAJob) {
  Runtime runtime(std::make_shared<CpuDevice>());
  auto nested = runtime.submit(primary("outer"), [](Job&) { Runtime inner(std::make_shared<CpuDevice>()); });
  runtime.start();
  EXPECT_TRUE(runtime.wait(30s));
  EXPECT_THAT(nested->error(), HasSubstr("cannot be opened inside a job"));
}

TEST(Runtime, StartsNothingIfAConditionCanNeverHold) {
  Runtime runtime(std::make_shared<CpuDevice>());
  auto job = runtime.submit(secondary("a", "after:b"), [](Job&) {});
  EXPECT_THROW(runtime.start(), std::invalid_argument);
  EXPECT_EQ(job->state(), JobState::kPending);
  runtime.submit(primary("b"), [](Job&) {});
  runtime.start();
  EXPECT_TRUE(runtime.wait(30s));
}

/// Limits the process's memory to the stack of one more thread, until the destructor.
class RoomForOneThread {
 public:
  RoomForOneThread() {
    constexpr std::size_t kStack = std::size_t{1} << 30;
    pthread_getattr_default_np(&former_stack_);
    getrlimit(RLIMIT_AS, &former_limit_);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    pthread_attr_t attributes = former_stack_;
    pthread_attr_setstacksize(&attributes, kStack);
    pthread_setattr_default_np(&attributes);
    const rlimit limit{pages * static_cast<std::size_t>(getpagesize()) + kStack + kStack / 2, former_limit_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  ~RoomForOneThread() {
    setrlimit(RLIMIT_AS, &former_limit_);
    pthread_setattr_default_np(&former_stack_);
  }
  RoomForOneThread(const RoomForOneThread&) = delete;  // of the process
  RoomForOneThread& operator=(const RoomForOneThread&) = delete;

 private:
  pthread_attr_t former_stack_{};
  rlimit former_limit_{};
};

TEST(Runtime, ClosesIfOnlyOneHelperThreadWasCreated) {
  Runtime runtime(std::make_shared<CpuDevice>());
  auto job = runtime.submit(primary("a"), [](Job&) {});
  {
    const RoomForOneThread here;
    EXPECT_THROW(runtime.start(), std::runtime_error);
  }
  EXPECT_TRUE(runtime.close(10s).empty());
  EXPECT_EQ(job->state(), JobState::kCancelled);
}

TEST(Runtime, StartsAtTheSecondTryIfOnlyOneHelperThreadWasCreated) {
  Runtime runtime(std::make_shared<CpuDevice>());
  auto job = runtime.submit(primary("a"), [](Job&) {});
  {
    const RoomForOneThread here;
    EXPECT_THROW(runtime.start(), std::runtime_error);
  }
  runtime.start();
  EXPECT_TRUE(runtime.wait(10s));
  EXPECT_EQ(job->state(), JobState::kFinished);
}

/// Counts the scheduling classes of the other threads with this thread's name.
std::map<int, int> workers_by_class() {
  const auto name_of = [](const std::string& thread) {
    std::string name;
    std::getline(std::ifstream("/proc/self/task/" + thread + "/comm"), name);
    return name;
  };
  const std::string self = std::to_string(gettid());
  std::map<int, int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string thread = entry.path().filename();
    if (thread != self && name_of(thread) == name_of(self)) {
      ++found[sched_getscheduler(std::stoi(thread))];
    }
  }
  return found;
}

constexpr auto kSoon = 300s;  // only ends a hang; threads of idle priority wait for cores that others use

/// Whether the thread gets idle priority, as it does once a higher job runs.
bool becomes_idle(int thread) {
  const auto until = std::chrono::steady_clock::now() + kSoon;
  while (sched_getscheduler(thread) != SCHED_IDLE && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(1ms);
  }
  return sched_getscheduler(thread) == SCHED_IDLE;
}

/// Whether the workers of the calling thread get idle priority, as they do after the thread itself.
bool workers_become_idle() {
  const auto until = std::chrono::steady_clock::now() + kSoon;
  while (workers_by_class().contains(SCHED_OTHER) && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(1ms);
  }
  return !workers_by_class().contains(SCHED_OTHER);
}

TEST(Runtime, WorkersThatAreNeededFirstInWorkOfTheProcessHaveLowPriority) {
  Runtime runtime(std::make_shared<CpuDevice>(), {.device_priority = DevicePriority::kIdle});
  JobSpec spec = secondary("a");
  spec.threads = 3;
  std::map<int, int> workers;
  std::latch higher(1);
  std::latch done(1);
  runtime.submit(primary("above"), [&](Job&) {
    higher.count_down();
    while (!done.try_wait()) {  // one that stands still raises those that it may wait for
      std::this_thread::sleep_for(1ms);
    }
  });
  runtime.submit(spec, [&](Job&) {
    higher.wait();  // a secondary that is alone has ordinary priority
    EXPECT_TRUE(becomes_idle(0));
    EXPECT_TRUE(workers_become_idle());
    const Ungated here;
    at::ones({4 * at::internal::GRAIN_SIZE});
    workers = workers_by_class();
    done.count_down();
  });
  runtime.start();
  EXPECT_TRUE(runtime.wait(kSoon));
  EXPECT_THAT(workers, ::testing::ElementsAre(::testing::Pair(SCHED_IDLE, 2)));
}

TEST(Runtime, ACancelRaisesNoOtherJobThoughTheirNamesBeginAlike) {
  if (!may_raise_priority()) {
    GTEST_SKIP() << "no CAP_SYS_NICE and no RLIMIT_NICE";
  }
  Runtime runtime(std::make_shared<CpuDevice>(), {.device_priority = DevicePriority::kIdle});
  std::atomic<int> other = 0;
  const auto run = [&](Job& job) {
    if (job.spec().name == "finetune-resnet50-lr2") {
      other = gettid();
    }
    run_ops_for_ever(job);
  };
  auto cancelled = runtime.submit(secondary("finetune-resnet50-lr1"), run);
  auto goes_on = runtime.submit(secondary("finetune-resnet50-lr2"), run);
  std::latch done(1);
  runtime.submit(primary("above"), [&](Job&) { done.wait(); });
  runtime.start();
  wait_for_ops(*cancelled, 10);
  wait_for_ops(*goes_on, 10);
  EXPECT_TRUE(becomes_idle(other));
  cancelled->cancel();
  EXPECT_TRUE(becomes_idle(other));  // not at once, if it waited for a core for so long that the stall watch raised it
  done.count_down();
}

TEST(JobThread, AForkedChildMaySetItsThreadsThoughAnotherThreadWasAboutTo) {
  const int former = at::get_num_threads();
  {
    const std::jthread other([](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        set_intra_op_threads(2);
      }
    });
    int status = 0;
    for (int child = 0; child < 100 && status == 0; ++child) {
      const pid_t id = fork();
      if (id == 0) {
        alarm(5);
        set_intra_op_threads(1);
        _exit(0);
      }
      ASSERT_EQ(waitpid(id, &status, 0), id);
    }
    EXPECT_EQ(status, 0) << "it waited for ever";
  }
  set_intra_op_threads(former);
}

/// Each thread holds a lock while it runs, but not while it waits for the GIL, as torch does in the first call of an
/// op.
TEST(Forks, AForkedChildFindsNoLockOfAThreadThatWaitsForTheGil) {
  wait_for_sleep_at_forks();
  std::mutex gil;
  std::mutex inner;
  const std::jthread other([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      {
        const std::lock_guard holds(gil);
      }
      const std::lock_guard holds(inner);
      for (const auto until = steady_clock::now() + 500us; steady_clock::now() < until;) {
      }
    }
  });
  for (int fork_number = 0; fork_number < 50; ++fork_number) {
    std::this_thread::sleep_for(200us);
    const std::lock_guard holds(gil);
    const pid_t child = fork();
    if (child == 0) {
      _exit(inner.try_lock() ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(WEXITSTATUS(status), 0) << "fork " << fork_number;
  }
}

TEST(Forks, AForkedChildIsNotDelayedForLongByAThreadThatComputes) {
  wait_for_sleep_at_forks();
  const std::jthread computes([](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
    }
  });
  const auto begin = steady_clock::now();
  const pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_LT(steady_clock::now() - begin, 20s);
}

/// An op that lasts as long as `body`.
template <class Body>
void op(Job& job, const Body& body) {
  const Permit permit(&runtime_job(job), UnknownCall());
  body();
}

TEST(BestFitRuntime, AnEndlessOpOfALowerJobDoesNotBlockThePrimary) {
  Runtime runtime(std::make_shared<CpuDevice>(), {.policy = "best_fit"});
  std::latch inside(1);
  std::latch release(1);
  auto lower = runtime.submit(secondary("lower"), [&](Job& job) {
    op(job, [&] {
      inside.count_down();
      release.wait();
    });
  });
  runtime.start();
  inside.wait();
  auto first = runtime.submit(primary("first"), [](Job& job) { train(job, 20); });
  while (first->state() != JobState::kFinished) {
    ASSERT_FALSE(is_terminal(lower->state()));
    std::this_thread::sleep_for(1ms);
  }
  release.count_down();
  EXPECT_TRUE(runtime.wait(10s));
  EXPECT_EQ(first->stats().waited, 0ns);
}

TEST(BestFitRuntime, ContinuesWhenThePrimaryDiesInsideAnOp) {
  Runtime runtime(std::make_shared<CpuDevice>(), {.policy = "best_fit"});
  auto first = runtime.submit(primary("first"), [](Job& job) {
    train(job, 20);
    op(job, [] { throw std::runtime_error("device lost"); });
  });
  auto lower = runtime.submit(secondary("lower"), [](Job& job) { train(job, 20); });
  runtime.start();
  EXPECT_TRUE(runtime.wait(30s));
  EXPECT_EQ(first->state(), JobState::kFailed);
  EXPECT_EQ(lower->state(), JobState::kFinished);
}

TEST(BestFitRuntime, AFloodOfTinyOpsEndsAndLeavesThePrimaryAlone) {
  constexpr std::uint64_t kOps = 20'000;  // with idle priority, beside a busy machine
  Runtime runtime(std::make_shared<CpuDevice>(), {.policy = "best_fit", .gate = {.max_wait = 5ms}});
  std::atomic<bool> flooded = false;
  auto first = runtime.submit(primary("first"), [&](Job& job) {
    while (!flooded) {
      train(job, 1);
      job.sleep(2ms);
    }
  });
  auto flood = runtime.submit(secondary("flood"), [&](Job& job) {
    for (std::uint64_t i = 0; i < kOps; ++i) {
      op(job, [] {});
    }
    flooded = true;
  });
  runtime.start();
  EXPECT_TRUE(runtime.wait(60s));
  EXPECT_EQ(flood->stats().ops, kOps);
  EXPECT_EQ(flood->state(), JobState::kFinished);
}

TEST(BestFitRuntime, AJobStarvesWithoutABoundAndNotWithOne) {
  for (const bool bounded : {false, true}) {
    RuntimeOptions options{.policy = "best_fit", .gate = {.grace = 1s}};
    if (bounded) {
      options.gate.max_wait = 2ms;
    }
    Runtime runtime(std::make_shared<CpuDevice>(), options);
    auto busy = runtime.submit(primary("busy"), run_ops_for_ever);
    runtime.start();
    wait_for_ops(*busy, 1000);
    auto lower = runtime.submit(secondary("lower"), [](Job& job) { train(job, 1); });
    if (bounded) {
      while (lower->state() != JobState::kFinished) {
        std::this_thread::sleep_for(1ms);
      }
    } else {
      std::this_thread::sleep_for(100ms);
      EXPECT_EQ(lower->stats().ops, 0U);
    }
    runtime.cancel_all();
    EXPECT_TRUE(runtime.wait(10s));
  }
}

TEST(Runtime, SurvivesManyStartsAndCancels) {
  for (int round = 0; round < 50; ++round) {
    Runtime runtime(std::make_shared<CpuDevice>(), {.policy = round % 2 == 0 ? "strict" : "best_fit"});
    runtime.submit(primary("a"), run_ops_for_ever);
    runtime.submit(secondary("b"), run_ops_for_ever);
    runtime.start();
    EXPECT_TRUE(runtime.close(10s).empty());
  }
}

}  // namespace
}  // namespace torchshare
