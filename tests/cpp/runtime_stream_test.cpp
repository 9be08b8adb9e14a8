#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <thread>
#include <vector>

#include "fakes/fake_device.h"
#include "runtime/job.h"
#include "torchshare/runtime.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Jobs on an asynchronous device, in virtual time. Their tensors are the CPU's.
class RuntimeStreamTest : public ::testing::Test {
 protected:
  /// Waits in real time; only the test advances virtual time.
  static bool have_ended(const std::vector<std::shared_ptr<Job>>& jobs, std::chrono::milliseconds patience = 60s) {
    const auto all_ended = [&] {
      return std::all_of(jobs.begin(), jobs.end(), [](const auto& job) { return is_terminal(job->state()); });
    };
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (!all_ended() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(1ms);
    }
    return all_ended();
  }

  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>(FakeDevice::Runs::kAsynchronous);
};

TEST_F(RuntimeStreamTest, AJobEndsWhenTheDeviceHasDoneItsWork) {
  Runtime runtime(device_);
  std::latch launched(1);
  const auto job = runtime.submit({.name = "a"}, [&](Job&) {
    device_->stream().launch(10ms);
    launched.count_down();
  });
  runtime.start();
  launched.wait();
  EXPECT_FALSE(have_ended({job}, 30ms));
  device_->clock().advance(10ms);
  EXPECT_TRUE(have_ended({job}));
  EXPECT_EQ(job->state(), JobState::kFinished);
}

TEST_F(RuntimeStreamTest, AJobThatSynchronizesWaitsForItsOwnWorkAndTheWaitIsCounted) {
  Runtime runtime(device_);
  std::latch launched(3);
  const auto other = runtime.submit({.name = "other", .priority = Priority::kPrimary}, [&](Job&) {
    device_->stream().launch(1h);
    launched.arrive_and_wait();
  });
  const auto job = runtime.submit({.name = "a"}, [&](Job& job) {
    device_->stream().launch(10ms);
    launched.arrive_and_wait();
    runtime_job(job).synchronize();
  });
  runtime.start();
  launched.arrive_and_wait();
  EXPECT_FALSE(have_ended({job}, 30ms));
  device_->clock().advance(10ms);
  EXPECT_TRUE(have_ended({job}));
  EXPECT_EQ(job->stats().waited, 10ms);
  EXPECT_FALSE(is_terminal(other->state()));
  device_->clock().advance(1h);
  EXPECT_TRUE(have_ended({other}));
}

TEST_F(RuntimeStreamTest, ALowerJobWaitsForTheStreamOfAHigherOne) {
  Runtime runtime(device_, {.policy = "strict"});
  std::latch launched(1);
  runtime.submit({.name = "high", .priority = Priority::kPrimary}, [&](Job&) {
    const at::Tensor x = at::ones({4});
    device_->stream().launch(10ms);
    launched.count_down();
  });
  const auto low = runtime.submit({.name = "low"}, [&](Job&) {
    launched.wait();
    at::ones({4}).add_(1);
  });
  runtime.start();
  EXPECT_FALSE(have_ended({low}, 50ms));
  EXPECT_EQ(low->stats().ops, 0U);
  while (!have_ended({low}, 5ms)) {
    device_->clock().advance(1ms);  // the work, then the grace after it was observed
  }
  EXPECT_GE(low->stats().ops, 2U);
}

TEST_F(RuntimeStreamTest, TensorsThatCrossRunningJobsAreRefused) {
  Runtime runtime(device_);
  at::Tensor crossing;
  std::latch made(1);
  std::latch tried(1);
  const at::Tensor before = at::ones({4});
  runtime.submit({.name = "maker", .priority = Priority::kPrimary}, [&](Job&) {
    crossing = at::ones({4});
    made.count_down();
    tried.wait();
  });
  const auto taker = runtime.submit({.name = "taker"}, [&](Job&) {
    made.wait();
    before.add(1);  // made before the jobs: any job may use it
    try {
      at::cat({before, crossing.view({4})});
    } catch (...) {
      tried.count_down();
      throw;
    }
    tried.count_down();
  });
  runtime.start();
  ASSERT_TRUE(have_ended({taker}));
  EXPECT_EQ(taker->state(), JobState::kFailed);
  EXPECT_THAT(taker->error(), AllOf(HasSubstr("job 'taker': "), HasSubstr("cat was given a tensor of job 'maker'"),
                                    HasSubstr("still running")));
}

TEST_F(RuntimeStreamTest, TensorsOfAnEndedJobMayBeUsedByAnyJob) {
  Runtime runtime(device_);
  at::Tensor left;
  runtime.submit({.name = "first"}, [&](Job&) { left = at::ones({4}); });
  const auto second = runtime.submit({.name = "second", .start = "after:first"}, [&](Job&) { left.add(1); });
  runtime.start();
  ASSERT_TRUE(have_ended({second}));
  EXPECT_EQ(second->state(), JobState::kFinished) << second->error();
}

TEST_F(RuntimeStreamTest, OnlyTheJobThatExceedsItsBudgetFails) {
  Runtime runtime(device_);
  const auto poor = runtime.submit({.name = "poor", .memory_budget = 1 << 20}, [](Job&) { at::ones({1 << 20}); });
  const auto rich = runtime.submit({.name = "rich"}, [](Job&) { at::ones({1 << 20}); });
  runtime.start();
  ASSERT_TRUE(have_ended({poor, rich}));
  EXPECT_EQ(poor->state(), JobState::kFailed);
  EXPECT_THAT(poor->error(), HasSubstr("job 'poor': memory budget exceeded: requested 4.00 MiB"));
  EXPECT_EQ(rich->state(), JobState::kFinished);
  EXPECT_EQ(rich->stats().memory_peak, 4 << 20);
  EXPECT_EQ(poor->stats().memory_peak, 0);
}

TEST_F(RuntimeStreamTest, AJobMayContinueWithLessMemory) {
  Runtime runtime(device_);
  const auto job = runtime.submit({.name = "poor", .memory_budget = 1 << 20}, [](Job&) {
    try {
      at::ones({1 << 20});
    } catch (const BudgetExceeded&) {
      at::ones({1 << 10});
    }
  });
  runtime.start();
  ASSERT_TRUE(have_ended({job}));
  EXPECT_EQ(job->state(), JobState::kFinished) << job->error();
}

TEST_F(RuntimeStreamTest, RunAheadIsForAsynchronousDevices) {
  EXPECT_THROW(Runtime(std::make_shared<FakeDevice>(), {.gate = {.run_ahead = 1ms}}), std::invalid_argument);
  EXPECT_NO_THROW(Runtime(device_, {.gate = {.run_ahead = 1ms}}));
}

/// What a job has launched goes on while it is held: it must be little, or steps of the primary that count as alone are
/// not.
TEST_F(RuntimeStreamTest, AJobThatMayBeHeldLaunchesLittleAhead) {
  for (const RuntimeOptions& options : {RuntimeOptions{.secondary_share = 0.9}, RuntimeOptions{.max_slowdown = 0.05}}) {
    Runtime runtime(device_, options);
    std::latch captured(1);
    std::latch done(1);
    const auto primary =
        runtime.submit({.name = "primary", .priority = Priority::kPrimary}, [&](Job&) { done.wait(); });
    std::chrono::nanoseconds most_ahead{0};
    const auto secondary = runtime.submit({.name = "secondary"}, [&](Job& job) {
      const auto graph = runtime_job(job).capture([] { at::ones({4}).add_(1); });
      captured.count_down();
      const auto began = device_->clock().now();
      for (int launched = 1; launched <= 200; ++launched) {
        runtime_job(job).launch(*graph, "graph");
        const auto is_ahead = [&] { return launched * FakeGraph::kWork - (device_->clock().now() - began); };
        while (launched <= 10 && is_ahead() > 0ns) {  // until it is known what a launch takes
          std::this_thread::sleep_for(1ms);
        }
        most_ahead = std::max(most_ahead, is_ahead());
      }
      done.count_down();
    });
    runtime.start();
    captured.wait();
    while (!have_ended({primary, secondary}, 2ms)) {
      device_->clock().advance(FakeGraph::kWork);
    }
    EXPECT_EQ(secondary->state(), JobState::kFinished) << secondary->error();
    EXPECT_LT(most_ahead, 50 * FakeGraph::kWork);
  }
}

TEST_F(RuntimeStreamTest, AGraphIsLaunchedAsOneOp) {
  Runtime runtime(device_);
  std::uint64_t ops = 0;
  const auto job = runtime.submit({.name = "a"}, [&](Job& job) {
    bool was_captured = false;
    const auto graph = runtime_job(job).capture([&] {
      at::ones({4}).add_(1);
      was_captured = device_->stream().record_marker() == 0;
    });
    EXPECT_TRUE(was_captured);
    EXPECT_NE(device_->stream().record_marker(), 0U);
    const std::uint64_t before = job.stats().ops;
    runtime_job(job).launch(*graph, "graph");
    runtime_job(job).launch(*graph, "graph");
    ops = job.stats().ops - before;
  });
  runtime.start();
  std::chrono::nanoseconds passed{0};
  while (!have_ended({job}, 20ms) && passed < 1s) {
    device_->clock().advance(FakeGraph::kWork);
    passed += FakeGraph::kWork;
  }
  EXPECT_GE(passed, 2 * FakeGraph::kWork);
  EXPECT_EQ(job->state(), JobState::kFinished) << job->error();
  EXPECT_EQ(ops, 2U);
}

TEST_F(RuntimeStreamTest, ACaptureBeginsWithoutWaitingForAHigherJob) {
  Runtime runtime(device_, {.policy = "strict"});
  std::latch launched(1);
  std::latch captured(1);
  const auto high = runtime.submit({.name = "high", .priority = Priority::kPrimary}, [&](Job&) {
    at::ones({4});
    device_->stream().launch(10ms);
    launched.count_down();
    captured.wait();
  });
  const auto low = runtime.submit({.name = "low"}, [&](Job& job) {
    launched.wait();
    runtime_job(job).capture([] {});
    captured.count_down();
  });
  runtime.start();
  EXPECT_TRUE(have_ended({low}, 5s));
  if (low->state() != JobState::kFinished) {
    captured.count_down();
    low->cancel();
  }
  EXPECT_TRUE([&] {
    device_->clock().advance(1h);
    return have_ended({high, low});
  }());
}

TEST_F(RuntimeStreamTest, AnExceptionEndsACaptureAndPropagates) {
  Runtime runtime(device_);
  const auto job = runtime.submit({.name = "a"}, [&](Job& job) {
    EXPECT_THROW(runtime_job(job).capture([] { throw std::out_of_range("mine"); }), std::out_of_range);
    EXPECT_NE(device_->stream().record_marker(), 0U);
    device_->let_captures_fail();
    EXPECT_THROW(runtime_job(job).capture([] {}), std::runtime_error);
    EXPECT_THROW(runtime_job(job).capture([] { throw std::out_of_range("mine"); }), std::out_of_range);
    EXPECT_NE(device_->stream().record_marker(), 0U);
  });
  runtime.start();
  ASSERT_TRUE(have_ended({job}));
  EXPECT_EQ(job->state(), JobState::kFinished) << job->error();
}

TEST_F(RuntimeStreamTest, AnExceptionInOneJobLeavesTheOtherAlone) {
  Runtime runtime(device_);
  const auto fails = runtime.submit({.name = "fails", .priority = Priority::kPrimary}, [&](Job&) {
    device_->stream().launch(1h);
    at::mm(at::ones({2, 3}), at::ones({2, 3}));
  });
  const auto other = runtime.submit({.name = "other"}, [](Job&) { at::ones({4}).add_(1); });
  runtime.start();
  ASSERT_TRUE(have_ended({fails, other}));
  EXPECT_EQ(fails->state(), JobState::kFailed);
  EXPECT_EQ(other->state(), JobState::kFinished) << other->error();
}

/// Its launch is the device's last.
class LastGraph final : public DeviceGraph {
 public:
  explicit LastGraph(FakeStream& stream) : stream_(stream) {}
  void begin_capture() override {}
  void end_capture() override {}
  void launch() override { stream_.fail(); }

 private:
  FakeStream& stream_;
};

TEST_F(RuntimeStreamTest, AFailureOfTheDeviceFailsTheJobsThatUseItAndNothingElse) {
  for (const char* policy : {"priority", "strict", "best_fit", "resource"}) {
    const auto device = std::make_shared<FakeDevice>(FakeDevice::Runs::kAsynchronous);
    Runtime runtime(device, {.policy = policy});
    const auto last =
        runtime.submit({.name = "last", .priority = Priority::kPrimary, .record_ops = true}, [&](Job& job) {
          at::ones({4});
          LastGraph graph(device->stream());
          runtime_job(job).launch(graph, "graph");
          at::ones({4});
        });
    runtime.start();
    ASSERT_TRUE(have_ended({last})) << policy;
    EXPECT_EQ(last->error(), "the device failed") << policy;
    device->lose();
    EXPECT_THROW(runtime.submit({.name = "late"}, [](Job&) {}), std::runtime_error);
    EXPECT_TRUE(runtime.close(20s).empty());
  }
}

TEST_F(RuntimeStreamTest, AFailureOfTheDeviceReachesAJobThatWaitsAtTheGate) {
  Runtime runtime(device_, {.policy = "strict"});
  std::latch launched(1);
  std::latch over(1);
  const auto high = runtime.submit({.name = "high", .priority = Priority::kPrimary}, [&](Job&) {
    at::ones({4});
    device_->stream().launch(1h);
    launched.count_down();
    std::this_thread::sleep_for(50ms);  // the lower job waits
    device_->stream().fail();
    over.wait();  // busy on the host, with nothing for the device
  });
  const auto low = runtime.submit({.name = "low"}, [&](Job&) {
    launched.wait();
    at::ones({4});
  });
  runtime.start();
  EXPECT_FALSE(have_ended({low}, 20ms));
  while (!have_ended({low}, 5ms) && device_->clock().now() < 10s) {
    device_->clock().advance(10ms);
  }
  EXPECT_EQ(low->state(), JobState::kFailed);
  EXPECT_EQ(low->error(), "the device failed");
  over.count_down();
  EXPECT_TRUE(have_ended({high}));
  EXPECT_EQ(high->error(), "the device failed");
}

TEST_F(RuntimeStreamTest, ACancelReachesAJobThatWaitsForTheDevice) {
  Runtime runtime(device_, {.policy = "strict"});
  std::latch launched(1);
  std::latch over(1);
  const auto high = runtime.submit({.name = "high", .priority = Priority::kPrimary}, [&](Job&) {
    at::ones({4});
    device_->stream().launch(10ms);
    launched.count_down();
    over.wait();
  });
  const auto low = runtime.submit({.name = "low"}, [&](Job&) {
    launched.wait();
    at::ones({4});
  });
  runtime.start();
  EXPECT_FALSE(have_ended({low}, 20ms));
  low->cancel();
  EXPECT_TRUE(have_ended({low}));
  EXPECT_EQ(low->state(), JobState::kCancelled);
  over.count_down();
  device_->clock().advance(10ms);
  EXPECT_TRUE(have_ended({high}));
}

TEST_F(RuntimeStreamTest, GraphsAreRefusedIfUnsupported) {
  Runtime runtime(std::make_shared<FakeDevice>());
  const auto job = runtime.submit({.name = "a"}, [](Job& job) { runtime_job(job).capture([] {}); });
  runtime.start();
  ASSERT_TRUE(have_ended({job}));
  EXPECT_EQ(job->error(), "job 'a': device 'fake' does not support graphs");
}

}  // namespace
}  // namespace torchshare
