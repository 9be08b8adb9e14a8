#include "gate/gate.h"

#include <gtest/gtest.h>

#include <future>
#include <latch>
#include <thread>

#include "device/cpu/cpu_device.h"
#include "fakes/fake_device.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;

constexpr auto kGrace = 200us;

/// A primary and a secondary at a strict gate, with a manual clock.
class GateTest : public ::testing::Test {
 protected:
  GateTest() {
    gate_.add(primary_);
    gate_.add(secondary_);
  }
  ~GateTest() override {
    gate_.remove(primary_);
    gate_.remove(secondary_);
  }

  std::future<bool> secondary_waits() {
    return std::async(std::launch::async, [this] { return gate_.wait_turn(secondary_); });
  }
  static bool still_waits(std::future<bool>& waiter) { return waiter.wait_for(20ms) == std::future_status::timeout; }

  ManualClock clock_;
  Gate gate_{make_gate_policy("strict", {.grace = kGrace}), clock_};
  Slot primary_{Priority::kPrimary};
  Slot secondary_{Priority::kSecondary};
};

TEST_F(GateTest, AsksThePolicyForTheLowerJobOnly) {
  EXPECT_EQ(primary_.interrupts.load(), 0U);
  EXPECT_EQ(secondary_.interrupts.load(), kContended);
}

TEST_F(GateTest, KeepsSecondaryOutWhilePrimaryIsInside) {
  primary_.enter();
  clock_.advance(1s);
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(1s);
  EXPECT_FALSE(gate_.try_enter(secondary_));
}

TEST_F(GateTest, AdmitsSecondaryAGraceAfterThePrimaryWasLastSeenToMove) {
  primary_.enter();
  primary_.leave();
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(kGrace - 1ns);
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(1ns);
  EXPECT_TRUE(gate_.try_enter(secondary_));
}

TEST_F(GateTest, AnOpDuringTheGraceStartsItAgain) {
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(kGrace);
  primary_.enter();
  primary_.leave();
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(kGrace);
  EXPECT_TRUE(gate_.try_enter(secondary_));
}

TEST_F(GateTest, AnIdleHintOpensAtOnceAndItsEndCloses) {
  auto waiter = secondary_waits();
  EXPECT_TRUE(still_waits(waiter));
  gate_.set_idle(primary_, true);
  EXPECT_TRUE(waiter.get());
  gate_.set_idle(primary_, false);
  primary_.enter();
  EXPECT_FALSE(gate_.try_enter(secondary_));
}

TEST_F(GateTest, KeepsSecondaryOutFromTheBeginOfARequestToItsAnswer) {
  gate_.set_idle(primary_, true);
  clock_.advance(1min);
  EXPECT_TRUE(gate_.try_enter(secondary_));
  gate_.set_idle(primary_, false);
  primary_.set_answering(true);
  EXPECT_FALSE(gate_.try_enter(secondary_)) << "before its first op";
  primary_.enter();
  primary_.leave();
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(10 * kGrace);
  EXPECT_FALSE(gate_.try_enter(secondary_)) << "between two ops";
  primary_.set_answering(false);
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(kGrace);
  EXPECT_TRUE(gate_.try_enter(secondary_));
}

TEST_F(GateTest, TheEndOfTheHigherJobOpensTheGatePermanently) {
  primary_.enter();
  auto waiter = secondary_waits();
  EXPECT_TRUE(still_waits(waiter));
  gate_.remove(primary_);
  EXPECT_TRUE(waiter.get());
  EXPECT_EQ(secondary_.interrupts.load(), 0U);
  gate_.add(primary_);
}

TEST(Gate, LetsOutrankedJobsInForTheirShareOfEachCycle) {
  ManualClock clock;
  Gate gate(make_gate_policy("priority", {}), clock);
  Slot primary(Priority::kPrimary);
  Slot secondary(Priority::kSecondary);
  gate.set_pace({.cycle = 100ms, .share = 0.3});
  gate.add(secondary);
  EXPECT_EQ(secondary.interrupts.load(), 0U);  // no job to wait for
  gate.add(primary);
  EXPECT_EQ(primary.interrupts.load(), 0U);
  EXPECT_EQ(secondary.interrupts.load(), kContended);
  EXPECT_TRUE(gate.try_enter(secondary));
  clock.advance(30ms);
  EXPECT_FALSE(gate.try_enter(secondary));
  auto waiter = std::async(std::launch::async, [&] { return gate.wait_turn(secondary); });
  EXPECT_EQ(waiter.wait_for(20ms), std::future_status::timeout);
  clock.advance(70ms);
  EXPECT_TRUE(waiter.get());
  gate.set_pace({.share = 0});
  EXPECT_FALSE(gate.try_enter(secondary));
  gate.remove(primary);
  EXPECT_EQ(secondary.interrupts.load(), 0U);
  gate.remove(secondary);
}

TEST_F(GateTest, WhatStopsAJobEndsItsWaitForATurn) {
  for (const Interrupt bit : {kCancel, kSuspend, kHold, kFork}) {
    primary_.enter();
    auto waiter = secondary_waits();
    EXPECT_TRUE(still_waits(waiter));
    gate_.set(secondary_, bit);
    EXPECT_FALSE(waiter.get());
    gate_.clear(secondary_, bit);
    primary_.leave();
  }
}

TEST_F(GateTest, ASuspendedJobWaitsForResumeOrCancel) {
  for (const bool resume : {true, false}) {
    gate_.set(secondary_, kSuspend);
    auto parked = std::async(std::launch::async, [this] { gate_.wait_while(secondary_, kSuspend); });
    EXPECT_EQ(parked.wait_for(20ms), std::future_status::timeout);
    resume ? gate_.clear(secondary_, kSuspend) : gate_.set(secondary_, kCancel);
    parked.get();
  }
}

TEST_F(GateTest, SleepEndsInTimeOrOnCancel) {
  auto sleeper = std::async(std::launch::async, [this] { gate_.sleep(secondary_, 1s); });
  EXPECT_EQ(sleeper.wait_for(20ms), std::future_status::timeout);
  clock_.advance(1s);
  sleeper.get();
  sleeper = std::async(std::launch::async, [this] { gate_.sleep(secondary_, kNever); });
  EXPECT_EQ(sleeper.wait_for(20ms), std::future_status::timeout);
  gate_.set(secondary_, kCancel);
  sleeper.get();
}

TEST(Slot, CountsTheOpsThatHaveEndedAndThoseThatHaveBegun) {
  Slot slot(Priority::kPrimary);
  for (std::uint64_t op = 1; op <= 3; ++op) {
    slot.enter();
    EXPECT_EQ(slot.ops_begun(), op);
    EXPECT_EQ(slot.ops(), op - 1);
    slot.leave();
    EXPECT_EQ(slot.ops_begun(), op);
    EXPECT_EQ(slot.ops(), op);
  }
}

/// A policy that blocks its caller, which holds the gate's lock.
class Keeps final : public GatePolicy {
 public:
  Keeps(std::latch& asked, std::latch& release) : asked_(asked), release_(release) {}
  bool concerns(const Standing& mine, const Standing& other) const override {
    return outranks(other.priority, mine.priority);
  }
  Verdict decide(const Requester&, std::span<const Competitor>) const override {
    asked_.count_down();
    release_.wait();
    return {.admit = true, .retry_after = 0ns};
  }

 private:
  std::latch& asked_;
  std::latch& release_;
};

TEST(Gate, ALowerJobThatHoldsTheLockDelaysNoHigherOne) {
  std::latch asked(1);
  std::latch release(1);
  SteadyClock clock;
  Gate gate(std::make_unique<Keeps>(asked, release), clock);
  Slot primary(Priority::kPrimary);
  Slot secondary(Priority::kSecondary);
  const Gate::Membership first(gate, primary, nullptr);
  const Gate::Membership second(gate, secondary, nullptr);
  std::jthread waiter([&] { EXPECT_TRUE(gate.wait_turn(secondary)); });
  asked.wait();
  auto steps = std::async(std::launch::async, [&] {
    gate.set_idle(primary, true);
    gate.sleep(primary, 1us);
    gate.set_idle(primary, false);
    gate.gap_opened();
    gate.set(primary, kHold);
    gate.clear(primary, kHold);
    gate.wait_while(primary, kHold);
  });
  EXPECT_EQ(steps.wait_for(60s), std::future_status::ready) << "it waits for the lock";
  release.count_down();
}

/// Refuses the first time, and announces a gap meanwhile, as a higher job does without the gate's lock.
class AnnouncesAGap final : public GatePolicy {
 public:
  bool concerns(const Standing& mine, const Standing& other) const override {
    return outranks(other.priority, mine.priority);
  }
  Verdict decide(const Requester&, std::span<const Competitor>) const override {
    if (asked_++ == 0) {
      gate_->gap_opened();
    }
    return {.admit = asked_ > 1, .retry_after = 1h};
  }
  Gate* gate_ = nullptr;

 private:
  mutable int asked_ = 0;
};

TEST(Gate, AChangeWhileThePolicyIsAskedIsNotLost) {
  ManualClock clock;
  auto policy = std::make_unique<AnnouncesAGap>();
  AnnouncesAGap& announces = *policy;
  Gate gate(std::move(policy), clock);
  announces.gate_ = &gate;
  Slot primary(Priority::kPrimary);
  Slot secondary(Priority::kSecondary);
  const Gate::Membership first(gate, primary, nullptr);
  const Gate::Membership second(gate, secondary, nullptr);
  auto waiter = std::async(std::launch::async, [&] { return gate.wait_turn(secondary); });
  EXPECT_EQ(waiter.wait_for(60s), std::future_status::ready) << "it waits for an hour";
  gate.gap_opened();
}

TEST(Gate, LosesNoWakeUpWhenTheHigherJobEndsWhileTheOtherWaits) {
  SteadyClock clock;
  Gate gate(make_gate_policy("strict", {.grace = 1s}), clock);  // longer than the test
  for (int round = 0; round < 2'000; ++round) {
    Slot primary(Priority::kPrimary);
    Slot secondary(Priority::kSecondary);
    gate.add(primary);
    gate.add(secondary);
    primary.enter();
    std::thread waiter([&] { EXPECT_TRUE(gate.wait_turn(secondary)); });
    gate.remove(primary);
    waiter.join();
    gate.remove(secondary);
  }
}

TEST(Gate, LosesNoCancelAndNoResume) {
  SteadyClock clock;
  Gate gate(make_gate_policy("priority", {}), clock);
  for (int round = 0; round < 2'000; ++round) {
    Slot slot(Priority::kSecondary);
    gate.add(slot);
    gate.set(slot, kSuspend);
    std::thread waiter([&] { gate.wait_while(slot, kSuspend); });
    round % 2 == 0 ? gate.clear(slot, kSuspend) : gate.set(slot, kCancel);
    waiter.join();
    gate.remove(slot);
  }
}

}  // namespace
}  // namespace torchshare
