#include "runtime/coordinator.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <memory>
#include <thread>

#include "device/cpu/cpu_device.h"
#include "fakes/coordinator_fixture.h"
#include "fakes/no_memory.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;

TEST(Coordinator, JobsThatEndAndJobsThatComeMeetNoOther) {
  CoordinatorParts<SteadyClock> parts({.max_concurrent = 2});
  auto& [clock, timeline, gate, coordinator] = parts;
  coordinator.open();
  std::thread serves([&] { coordinator.serve(); });
  const auto run_jobs = [&](const std::string& name) {
    for (int i = 0; i < 200; ++i) {
      Member job(coordinator, clock, {.name = name, .start = i % 2 == 0 ? "now" : "after:" + name + "0"});
      ASSERT_TRUE(coordinator.wait_to_start(job.id()));
      job.step();
      job.end(JobState::kFinished);
    }
  };
  for (const std::string name : {"a", "b", "c"}) {
    Member first(coordinator, clock, {.name = name + "0"});
    ASSERT_TRUE(coordinator.wait_to_start(first.id()));
    first.end(JobState::kFinished);
  }
  std::thread a([&] { run_jobs("a"); });
  std::thread b([&] { run_jobs("b"); });
  run_jobs("c");
  a.join();
  b.join();
  EXPECT_TRUE(coordinator.wait_all(kNever));
  coordinator.dismiss();
  serves.join();
  EXPECT_EQ(coordinator.size(), 0U);
}

/// Counts waits.
class CountingClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override { return 1ms; }
  void wait(EventCount& wake, std::uint32_t seen, std::chrono::nanoseconds) override {
    ++waits;
    wake.wait(seen, kNever);
  }

  std::atomic<int> waits = 0;
};

/// Time passes whenever it is read; a wait ends at its deadline, if it has one.
class TickingClock final : public Clock {
 public:
  explicit TickingClock(std::chrono::nanoseconds tick = 0ns) : tick(tick) {}
  std::chrono::nanoseconds now() const override { return now_ += tick; }
  void wait(EventCount&, std::uint32_t, std::chrono::nanoseconds deadline) override {
    ASSERT_NE(deadline, kNever) << "nothing would wake the job";
    now_ = std::max(now_, deadline);
  }

  std::chrono::nanoseconds tick;

 private:
  mutable std::chrono::nanoseconds now_{0};
};

TEST(Coordinator, AStartThatBecomesDueWhileTheJobBeginsToWaitIsNotLost) {
  for (auto tick = 50us; tick <= 2ms; tick += 50us) {
    CoordinatorParts<TickingClock> parts;
    auto& [clock, timeline, gate, coordinator] = parts;
    clock.tick = tick;
    Member job(coordinator, clock, {.name = "a", .start = "0.002"});
    coordinator.open();
    EXPECT_TRUE(coordinator.wait_to_start(job.id()));
    if (HasFatalFailure()) {
      return;
    }
  }
}

TEST(Coordinator, AMessageThatAnotherThreadAppliesWakesTheThreadThatDecides) {
  CoordinatorParts<CountingClock> parts;
  auto& [clock, timeline, gate, coordinator] = parts;
  Member job(coordinator, clock, {.name = "a"});
  coordinator.open();
  EXPECT_TRUE(coordinator.wait_to_start(job.id()));
  std::jthread serves([&] { coordinator.serve(); });
  const auto waits = [&, deadline = std::chrono::steady_clock::now() + 60s](int times) {
    while (clock.waits < times && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    return clock.waits >= times;
  };
  ASSERT_TRUE(waits(1));
  coordinator.send({job.id(), JobMessage::Kind::kStepped, 1ms, 1});
  ASSERT_TRUE(waits(2));
  coordinator.send({job.id(), JobMessage::Kind::kStepped, 1ms, 2});  // within the wake interval: wakes nothing
  EXPECT_TRUE(coordinator.take_orders().empty());
  EXPECT_TRUE(waits(3));
  coordinator.dismiss();
}

TEST(Coordinator, AnAnswerRightAfterAnotherIsAppliedThoughNothingFollows) {
  CoordinatorParts<SteadyClock> parts;
  auto& [clock, timeline, gate, coordinator] = parts;
  Member server(coordinator, clock, {.name = "server", .priority = Priority::kPrimary});
  Member training(coordinator, clock, {.name = "training"});
  coordinator.open();
  EXPECT_TRUE(coordinator.wait_to_start(server.id()));
  EXPECT_TRUE(coordinator.wait_to_start(training.id()));
  std::jthread serves([&] { coordinator.serve(); });
  const auto send = [&, job = server.id()](JobMessage::Kind kind) {
    const auto now = clock.now();
    coordinator.send({.job = job, .kind = kind, .at = now, .target = {0.99, 1}, .arrived = now, .taken = now});
  };
  const auto is_answered = [&, job = server.id()](std::uint64_t times) {
    const auto latency = coordinator.latency(job);
    return latency && latency->answered == times;
  };
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  send(JobMessage::Kind::kPromises);
  for (std::uint64_t times = 1; times <= 5; ++times) {
    send(JobMessage::Kind::kAnswered);
    while (!is_answered(times) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  }
  EXPECT_TRUE(is_answered(5));
  coordinator.dismiss();
}

class WithoutMemoryTest : public CoordinatorTest {
 protected:
  /// The job ends while only `news` allocations succeed; memory is back when the coordinator tries again.
  void end(Member& member, JobState state, int news) {
    news_left = news;
    member.end(state);
    news_left = -1;
    clock_.advance(10ms);
    coordinator_.serve_once();
  }
};

TEST_F(WithoutMemoryTest, ADecisionIsMadeLaterAndForAllRanks) {
  coordinator_.keep_orders();
  coordinator_.open();
  for (int news = 0; news < 12; ++news) {
    const std::string other = fmt::format("b{}", news);
    Member& primary = add_profiled(fmt::format("a{}", news), Priority::kPrimary, "now", 0.1, 100, other, 3);
    Member& secondary = add_profiled(other, Priority::kSecondary, "auto", 0.1, 100, primary.name(), 3);
    EXPECT_TRUE(start(primary).get());
    auto waiter = start(secondary);
    while (secondary.state() != JobState::kDelayed) {
      std::this_thread::yield();
    }
    coordinator_.take_orders();
    end(primary, JobState::kFinished, news);
    ASSERT_EQ(waiter.wait_for(60s), std::future_status::ready) << "without memory after " << news << " allocations";
    EXPECT_EQ(coordinator_.take_orders().back().job, secondary.id());
    secondary.end(JobState::kFinished);
  }
}

TEST_F(WithoutMemoryTest, TheEndOfAPredecessorIsNotLost) {
  coordinator_.open();
  for (int news = 0; news < 12; ++news) {
    Member& first = add(fmt::format("a{}", news), Priority::kPrimary, "now");
    Member& any = add({.name = fmt::format("b{}", news), .after = {first.name()}});
    Member& ok = add({.name = fmt::format("c{}", news), .after = {"ok:" + first.name()}});
    EXPECT_TRUE(start(first).get());
    auto starts = start(any);
    auto is_cancelled = start(ok);
    EXPECT_TRUE(is_delayed(any) && is_delayed(ok));
    end(first, JobState::kFailed, news);
    ASSERT_EQ(starts.wait_for(60s), std::future_status::ready) << "without memory after " << news << " allocations";
    EXPECT_TRUE(starts.get());
    ASSERT_EQ(is_cancelled.wait_for(60s), std::future_status::ready) << news;
    EXPECT_FALSE(is_cancelled.get());
    any.end(JobState::kFinished);
  }
}

TEST(Coordinator, WaitsBeforeItTriesAgainWithoutMemory) {
  CoordinatorParts<CountingClock> parts;
  auto& [clock, timeline, gate, coordinator] = parts;
  Member job(coordinator, clock, {.name = "a", .start = "auto"});
  coordinator.open();
  std::jthread server([&] {
    news_left = 0;
    coordinator.serve();
    news_left = -1;
  });
  std::this_thread::sleep_for(20ms);
  EXPECT_LE(clock.waits, 3);
  coordinator.dismiss();
}

/// Blocks its caller, which holds the coordinator's lock.
class KeepingClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override {
    if (keeps.load()) {
      asked.count_down();
      release.wait();
    }
    return 1s;
  }
  void wait(EventCount&, std::uint32_t, std::chrono::nanoseconds) override {}

  std::atomic<bool> keeps = false;
  mutable std::latch asked{1};
  mutable std::latch release{1};
};

TEST(Coordinator, AThreadThatHoldsTheLockDelaysNoJobThatSendsAMessage) {
  CoordinatorParts<KeepingClock> parts;
  auto& [clock, timeline, gate, coordinator] = parts;
  Member job(coordinator, clock, {.name = "a", .priority = Priority::kPrimary});
  coordinator.open();
  EXPECT_TRUE(coordinator.wait_to_start(job.id()));
  clock.keeps = true;
  std::jthread other([&] { coordinator.serve_once(); });
  clock.asked.wait();
  auto step = std::async(std::launch::async, [&] {
    coordinator.send({job.id(), JobMessage::Kind::kStepped, 1s, 1});
    return job.state();
  });
  EXPECT_EQ(step.wait_for(60s), std::future_status::ready) << "it waits for the lock";
  clock.keeps = false;
  clock.release.count_down();
}

TEST_F(CoordinatorTest, ServesMessagesWithoutWaitingJobs) {
  Member& job = add("a", Priority::kPrimary, "now");
  EXPECT_TRUE(coordinator_.wait_to_start(job.id()));
  {
    std::jthread server([this] { coordinator_.serve(); });
    coordinator_.send({job.id(), JobMessage::Kind::kSuspended, clock_.now()});
    while (job.state() != JobState::kSuspended) {
      std::this_thread::sleep_for(1ms);
    }
    coordinator_.send({job.id(), JobMessage::Kind::kEnded, clock_.now(), 0, JobState::kCancelled});
    coordinator_.dismiss();
  }
  EXPECT_EQ(job.state(), JobState::kCancelled) << "what is there when it is dismissed is applied";
}

}  // namespace
}  // namespace torchshare
