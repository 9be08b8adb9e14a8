#include "runtime/serving_threads.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "device/cpu/cpu_device.h"
#include "hook/op_call.h"
#include "runtime/job.h"
#include "runtime/runtime_state.h"
#include "torchshare/runtime.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

void run_ops(int count) {
  at::Tensor x = at::ones({4});
  for (int i = 0; i < count; ++i) {
    x.add_(1);
  }
}

/// A primary that is inside an op until `leave`.
class HigherJob {
 public:
  explicit HigherJob(Runtime& runtime) {
    runtime.submit({.name = "higher", .priority = Priority::kPrimary}, [latches = latches_](Job&) {
      const Permit inside(current_context, NamedCall(1, "op"));
      latches->is_inside.count_down();
      latches->may_leave.wait();
    });
    latches_->is_inside.wait();
  }
  void leave() const { latches_->may_leave.count_down(); }

 private:
  struct Latches {
    std::latch is_inside{1};
    std::latch may_leave{1};
  };
  std::shared_ptr<Latches> latches_ = std::make_shared<Latches>();
};

/// A server that waits, as one that has given its handlers to other threads.
class Serving : public ::testing::Test {
 protected:
  void start(const JobSpec& spec) {
    server_ = runtime_.submit(spec, [this](Job&) {
      begun_.count_down();
      while (!over_.load()) {
        std::this_thread::sleep_for(1ms);
      }
    });
    runtime_.start();
    begun_.wait();
  }
  void end() {
    over_.store(true);
    EXPECT_TRUE(runtime_.wait(60s));
  }
  ~Serving() override { over_.store(true); }

  ServingThreads& threads() { return runtime_job(*server_).serving_threads(); }
  template <class Work>
  void serve(Work work) {
    ServingScope scope(threads(), 1);
    work();
  }

  std::atomic<bool> over_{false};
  std::latch begun_{1};
  Runtime runtime_{std::make_shared<CpuDevice>(), {.policy = "strict"}};
  std::shared_ptr<Job> server_;
};

TEST_F(Serving, CountsTheOpsOfManyThreads) {
  start({.name = "server", .priority = Priority::kPrimary});
  std::vector<std::thread> handlers;
  for (int i = 0; i < 64; ++i) {
    handlers.emplace_back([this] { serve([] { run_ops(10); }); });
  }
  for (std::thread& each : handlers) {
    each.join();
  }
  EXPECT_GE(server_->stats().ops, 64 * 11U);
  end();
  EXPECT_EQ(server_->state(), JobState::kFinished);
}

TEST_F(Serving, LeavesTheThreadAsItWas) {
  start({.name = "server", .priority = Priority::kPrimary, .threads = 3});
  std::thread([this] {
    at::set_num_threads(2);
    const auto before = server_->stats().ops;
    {
      ServingScope scope(threads(), 3);
      EXPECT_EQ(at::get_num_threads(), 3);
      EXPECT_NE(current_context, nullptr);
    }
    EXPECT_EQ(at::get_num_threads(), 2);
    EXPECT_EQ(current_context, nullptr);
    run_ops(10);
    EXPECT_EQ(server_->stats().ops, before);
  }).join();
  end();
}

TEST_F(Serving, NoLowerJobIsInsideAnOpWithIt) {
  start({.name = "server", .priority = Priority::kPrimary});
  std::atomic<bool> stops{false};
  const auto lower = runtime_.submit({.name = "lower", .priority = Priority::kSecondary}, [&](Job&) {
    while (!stops.load()) {
      run_ops(1);
    }
  });
  const auto wait_for_more = [&] {
    for (const auto before = lower->stats().ops; lower->stats().ops < before + 100;) {
      std::this_thread::sleep_for(1ms);
    }
  };
  wait_for_more();  // the server's threads are idle
  serve([&] {
    const Permit inside(current_context, NamedCall(1, "op"));
    std::this_thread::sleep_for(50ms);  // the lower job ends the op that it is in
    const auto before = lower->stats().ops;
    std::this_thread::sleep_for(50ms);
    EXPECT_LE(lower->stats().ops, before + 1);  // it may have had no core for that op until now
  });
  wait_for_more();
  stops.store(true);
  end();
}

TEST_F(Serving, TheThreadsOfALowerJobWaitForTheHigher) {
  start({.name = "server", .priority = Priority::kSecondary});
  const HigherJob higher(runtime_);
  std::atomic<bool> is_done{false};
  std::thread handler([&] {
    serve([] { run_ops(1); });
    is_done.store(true);
  });
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(is_done.load());
  higher.leave();
  handler.join();
  end();
}

TEST_F(Serving, ACancelledJobsThreadsStopAtTheNextOp) {
  start({.name = "server", .priority = Priority::kPrimary});
  std::latch runs{1};
  std::string error;
  std::thread handler([&] {
    serve([&] {
      runs.count_down();
      try {
        run_ops(std::numeric_limits<int>::max());
      } catch (const Cancelled& cancelled) {
        error = cancelled.what();
      }
    });
  });
  runs.wait();
  server_->cancel();
  handler.join();
  EXPECT_THAT(error, HasSubstr("job 'server' was cancelled"));
  end();
}

TEST_F(Serving, AThreadThatWaitsForItsTurnStopsWhenItsJobIsCancelled) {
  start({.name = "server", .priority = Priority::kSecondary});
  const HigherJob higher(runtime_);
  std::thread handler([&] { EXPECT_THROW(serve([] { run_ops(1); }), Cancelled); });
  std::this_thread::sleep_for(20ms);
  server_->cancel();
  handler.join();
  higher.leave();
  end();
}

TEST_F(Serving, ThreadsOfASuspendedJobWait) {
  start({.name = "server", .priority = Priority::kPrimary});
  server_->suspend();
  std::atomic<bool> is_done{false};
  std::thread handler([&] {
    serve([] { run_ops(1); });
    is_done.store(true);
  });
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(is_done.load());
  server_->resume();
  handler.join();
  end();
}

TEST_F(Serving, TwoAtATimeHaveDifferentRandomStates) {
  start({.name = "server", .priority = Priority::kPrimary});
  std::latch both{2};
  std::array<at::Tensor, 2> drawn;
  const auto draw = [&](at::Tensor& into) {
    serve([&] {
      both.arrive_and_wait();
      into = at::rand({4});
    });
  };
  std::thread one([&] { draw(drawn[0]); });
  std::thread other([&] { draw(drawn[1]); });
  one.join();
  other.join();
  EXPECT_FALSE(at::equal(drawn[0], drawn[1]));
  end();
}

TEST_F(Serving, AnEndedJobAnswersNothing) {
  start({.name = "server", .priority = Priority::kPrimary});
  ServingThreads& threads = this->threads();
  end();
  try {
    const ServingScope scope(threads, 1);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "job 'server' answers no requests: it does not run");
  }
}

TEST_F(Serving, AThreadMayOutlastTheJob) {
  start({.name = "server", .priority = Priority::kPrimary});
  std::latch runs{1};
  std::thread handler([&] {
    ServingScope scope(threads(), 1);
    runs.count_down();
    while (server_->state() != JobState::kFinished) {
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_THROW(run_ops(1), Cancelled);
  });
  runs.wait();
  end();
  handler.join();
}

}  // namespace
}  // namespace torchshare
