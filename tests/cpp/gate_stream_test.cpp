#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <utility>

#include "fakes/fake_device.h"
#include "fakes/unknown_call.h"
#include "gate/device_times.h"
#include "gate/gate.h"
#include "gate/op_watch.h"
#include "gate/run_ahead.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;

constexpr auto kStreamGrace = 200us;

/// A primary and a secondary at a gate, on an asynchronous device, in virtual time.
class GateStreamTest : public ::testing::Test {
 protected:
  explicit GateStreamTest(std::string_view policy = "strict", GatePolicyOptions options = {.grace = kStreamGrace})
      : gate_(make_gate_policy(policy, options), clock_) {
    gate_.add(primary_, primary_stream_);
    gate_.add(secondary_, secondary_stream_);
  }
  ~GateStreamTest() override {
    gate_.remove(primary_);
    gate_.remove(secondary_);
  }

  /// The primary launches work that takes so long, and leaves the op at once.
  void primary_launches(std::chrono::nanoseconds work) {
    primary_.enter();
    primary_stream_->launch(work);
    primary_.leave();
  }

  /// The secondary looks for long enough to record a marker.
  void secondary_looks() {
    EXPECT_FALSE(gate_.try_enter(secondary_));
    clock_.advance(Gate::kSettled);
    EXPECT_FALSE(gate_.try_enter(secondary_));
  }

  ManualClock clock_;
  std::shared_ptr<FakeStream> primary_stream_ = std::make_shared<FakeStream>(clock_);
  std::shared_ptr<FakeStream> secondary_stream_ = std::make_shared<FakeStream>(clock_);
  Gate gate_;
  Slot primary_{Priority::kPrimary};
  Slot secondary_{Priority::kSecondary};
};

TEST_F(GateStreamTest, AJobIsInsideWhileItsStreamHasWork) {
  primary_launches(10ms);
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(9ms);
  EXPECT_FALSE(gate_.try_enter(secondary_)) << "quiet on the host for far longer than the grace";
  clock_.advance(1ms);
  EXPECT_FALSE(gate_.try_enter(secondary_)) << "the grace begins when the device is seen to be done";
  clock_.advance(kStreamGrace);
  EXPECT_TRUE(gate_.try_enter(secondary_));
}

TEST_F(GateStreamTest, WorkLaunchedAfterTheMarkerCounts) {
  primary_launches(1ms);
  secondary_looks();
  EXPECT_EQ(primary_stream_->markers_recorded(), 1U);
  primary_launches(5ms);
  clock_.advance(2ms);
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(2ms);
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(2ms);
  EXPECT_FALSE(gate_.try_enter(secondary_));  // sees that it is done
  clock_.advance(kStreamGrace);
  EXPECT_TRUE(gate_.try_enter(secondary_));
}

TEST_F(GateStreamTest, AJobWhoseStreamWaitsForOtherRanksIsIdle) {
  primary_launches(1ms);
  primary_.waits.begin(*primary_stream_, {});
  primary_stream_->launch(10ms);  // the collective
  primary_.waits.end(*primary_stream_);
  primary_.enter();  // it reads the loss: the op ends with what it has launched before
  primary_stream_->launch(1ms);
  EXPECT_FALSE(gate_.try_enter(secondary_)) << "its own work before the collective";
  clock_.advance(1ms);
  EXPECT_TRUE(gate_.try_enter(secondary_)) << "without a grace: it will not return before the collective ends";
  clock_.advance(9ms);
  EXPECT_TRUE(gate_.try_enter(secondary_));
  clock_.advance(1ms);
  EXPECT_FALSE(gate_.try_enter(secondary_)) << "its own work behind the collective";
  primary_.leave();
  secondary_looks();
  clock_.advance(1ms);
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(kStreamGrace);
  EXPECT_TRUE(gate_.try_enter(secondary_));
}

TEST_F(GateStreamTest, AJobThatWaitsOnOneStreamAndWorksOnAnotherIsNotIdle) {
  primary_.waits.begin(*primary_stream_, {});
  primary_stream_->launch(10ms);
  primary_.waits.end(*primary_stream_);
  primary_stream_->launch_beside(2ms);
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(2ms);
  EXPECT_TRUE(gate_.try_enter(secondary_));
}

TEST_F(GateStreamTest, TheThreadThatServesAJobsRequestsIsIdleWithItsStream) {
  Slot thread(Priority::kPrimary, &primary_);
  const Gate::Membership member(gate_, thread, primary_stream_);
  primary_.waits.begin(*primary_stream_, {});
  primary_stream_->launch(10ms);
  primary_.waits.end(*primary_stream_);
  EXPECT_TRUE(gate_.try_enter(secondary_));
}

TEST_F(GateStreamTest, AWaitThatIsNotLaunchedYetOrIsCapturedIsNone) {
  primary_launches(10ms);
  primary_.waits.begin(*primary_stream_, {});
  clock_.advance(10ms);
  EXPECT_FALSE(primary_.waits.current(*primary_stream_)) << "the thread has not come back from it";
  primary_stream_->set_capturing(true);
  primary_.waits.end(*primary_stream_);
  primary_.waits.begin(*primary_stream_, {});
  primary_.waits.end(*primary_stream_);
  primary_stream_->set_capturing(false);
  EXPECT_FALSE(primary_.waits.current(*primary_stream_));
  primary_stream_->fail();
  primary_.waits.end(*primary_stream_);  // without a wait, and without an error
}

/// A stream that `has_work` does not look at, as of an extension. Its job runs an op while a marker is recorded on it.
class OvertakenStream final : public FakeStream {
 public:
  OvertakenStream(Clock& clock, Slot& slot) : FakeStream(clock), slot_(slot) {}
  Marker record_marker() override {
    const Marker marker = FakeStream::record_marker();
    if (marker == 1) {
      slot_.enter();
      launch(1h);
      slot_.leave();
    }
    return marker;
  }
  bool has_work() const override { return false; }
  bool has_finished() const override { return false; }

 private:
  Slot& slot_;
};

TEST_F(GateStreamTest, AMarkerDoesNotCoverAnOpThatBeganWhileItWasRecorded) {
  const auto stream = std::make_shared<OvertakenStream>(clock_, primary_);
  gate_.remove(primary_);
  gate_.add(primary_, stream);
  secondary_looks();
  EXPECT_EQ(stream->markers_recorded(), 1U);
  for (int look = 0; look < 4; ++look) {
    clock_.advance(kStreamGrace);
    EXPECT_FALSE(gate_.try_enter(secondary_)) << "the device has work for an hour";
  }
}

TEST_F(GateStreamTest, TheThreadsOfAJobNeedOneMarker) {
  Slot thread(Priority::kPrimary, &primary_);
  const Gate::Membership member(gate_, thread, primary_stream_);
  primary_launches(1ms);
  secondary_looks();
  EXPECT_EQ(primary_stream_->markers_recorded(), 1U);
  clock_.advance(1ms);
  EXPECT_FALSE(gate_.try_enter(secondary_));  // sees that it is done
  primary_stream_->launch(1ms);
  clock_.advance(kStreamGrace);
  EXPECT_FALSE(gate_.try_enter(secondary_));
  EXPECT_EQ(primary_stream_->markers_recorded(), 2U);
}

TEST_F(GateStreamTest, AKernelThatIsNotAnOpIsSeen) {
  primary_launches(1ms);
  secondary_looks();
  clock_.advance(1ms);
  EXPECT_FALSE(gate_.try_enter(secondary_));  // sees that it is done
  primary_stream_->launch(1s);                // as Triton does
  clock_.advance(kStreamGrace);
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(999ms);
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(1ms);
  EXPECT_FALSE(gate_.try_enter(secondary_));  // sees that it is done
  clock_.advance(kStreamGrace);
  EXPECT_TRUE(gate_.try_enter(secondary_));
  EXPECT_EQ(primary_stream_->markers_recorded(), 2U);
}

TEST_F(GateStreamTest, AWaiterSeesAKernelThatIsNotAnOp) {
  primary_launches(1ms);
  auto waiter = std::async(std::launch::async, [this] { return gate_.wait_turn(secondary_); });
  while (primary_stream_->markers_recorded() == 0) {
    clock_.advance(1us);
    std::this_thread::sleep_for(1ms);
  }
  primary_stream_->launch(1s);
  clock_.advance(1ms + kStreamGrace);
  clock_.advance(kStreamGrace);
  while (primary_stream_->markers_recorded() == 1) {  // the marker behind it
    clock_.advance(kStreamGrace);
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(waiter.wait_for(20ms), std::future_status::timeout);
  clock_.advance(1s);
  while (waiter.wait_for(1ms) != std::future_status::ready) {
    clock_.advance(kStreamGrace);
  }
  EXPECT_TRUE(waiter.get());
}

TEST_F(GateStreamTest, OnlyTheWaitingJobRecordsMarkersAndOneForEachState) {
  for (int i = 0; i < 100; ++i) {
    primary_launches(1ms);
  }
  EXPECT_EQ(primary_stream_->markers_recorded(), 0U) << "the primary pays nothing";
  for (int i = 0; i < 10; ++i) {
    secondary_looks();
  }
  EXPECT_EQ(primary_stream_->markers_recorded(), 1U);
  EXPECT_EQ(secondary_stream_->markers_recorded(), 0U);
}

TEST_F(GateStreamTest, AStreamThatIsDoneNeedsNoMarker) {
  primary_launches(10us);
  secondary_looks();
  clock_.advance(kStreamGrace);
  EXPECT_TRUE(gate_.try_enter(secondary_));
  EXPECT_EQ(primary_stream_->markers_recorded(), 0U);
}

TEST_F(GateStreamTest, AMarkerIsRecordedOnceIn200Microseconds) {
  constexpr auto kPause = Gate::kSettled + 10us;
  constexpr int kOps = 1000;
  for (int i = 0; i < kOps; ++i) {
    primary_launches(1ms);
    secondary_looks();
    clock_.advance(10us);
    EXPECT_FALSE(gate_.try_enter(secondary_));
  }
  const auto most = static_cast<std::size_t>(kOps * kPause / Gate::kBetweenMarkers) + 1;
  EXPECT_LE(primary_stream_->markers_recorded(), most);
  EXPECT_GE(primary_stream_->markers_recorded(), most / 2) << "and not less often than is allowed";
}

TEST_F(GateStreamTest, AJobThatLaunchesOpAfterOpGetsNoMarkers) {
  for (int i = 0; i < 1000; ++i) {
    primary_launches(1us);
    EXPECT_FALSE(gate_.try_enter(secondary_));
    clock_.advance(Gate::kSettled - 1us);
    EXPECT_FALSE(gate_.try_enter(secondary_));
  }
  EXPECT_EQ(primary_stream_->markers_recorded(), 0U);
  primary_launches(1ms);
  gate_.set_idle(primary_, true);
  EXPECT_FALSE(gate_.try_enter(secondary_)) << "records a marker at once";
  EXPECT_EQ(primary_stream_->markers_recorded(), 1U);
}

TEST_F(GateStreamTest, AStreamThatIsCapturedIsBusyAndRecordsNoMarker) {
  primary_stream_->set_capturing(true);
  primary_launches(0ns);
  secondary_looks();
  EXPECT_EQ(primary_stream_->markers_recorded(), 0U);
  primary_stream_->set_capturing(false);
  secondary_looks();
  clock_.advance(kStreamGrace);
  EXPECT_TRUE(gate_.try_enter(secondary_));
}

TEST_F(GateStreamTest, AnIdleHintDoesNotOpenTheGateWhileTheDeviceWorks) {
  primary_launches(10ms);
  gate_.set_idle(primary_, true);
  EXPECT_FALSE(gate_.try_enter(secondary_));
  clock_.advance(10ms);
  EXPECT_TRUE(gate_.try_enter(secondary_));
}

TEST_F(GateStreamTest, AWaiterSeesTheDeviceBecomeDone) {
  primary_launches(10ms);
  auto waiter = std::async(std::launch::async, [this] { return gate_.wait_turn(secondary_); });
  EXPECT_EQ(waiter.wait_for(20ms), std::future_status::timeout);
  clock_.advance(10ms);
  while (waiter.wait_for(1ms) != std::future_status::ready) {
    clock_.advance(kStreamGrace);
  }
  EXPECT_TRUE(waiter.get());
  EXPECT_GE(clock_.now(), 10ms + kStreamGrace);
}

TEST_F(GateStreamTest, AWaiterIsStoppedWhileTheDeviceWorks) {
  primary_launches(1h);
  auto waiter = std::async(std::launch::async, [this] { return gate_.wait_turn(secondary_); });
  gate_.set(secondary_, kCancel);
  EXPECT_FALSE(waiter.get());
}

TEST_F(GateStreamTest, AWaiterIsToldThatTheDeviceHasFailed) {
  primary_launches(10ms);
  auto waiter = std::async(std::launch::async, [this] { return gate_.wait_turn(secondary_); });
  while (primary_stream_->markers_recorded() == 0) {
    clock_.advance(1us);
    std::this_thread::sleep_for(1ms);
  }
  primary_stream_->fail();
  clock_.advance(1s);
  ASSERT_EQ(waiter.wait_for(60s), std::future_status::ready);
  EXPECT_THROW(waiter.get(), std::runtime_error);
  gate_.set(secondary_, kCancel);
  EXPECT_FALSE(gate_.wait_turn(secondary_)) << "it may come again while it unwinds";
}

TEST_F(GateStreamTest, AMemberMayLeaveWhileMarkersAreRecorded) {
  std::atomic<bool> stop{false};
  std::thread waiter([&] {
    while (!stop.load()) {
      (void)gate_.try_enter(secondary_);
    }
  });
  for (int i = 0; i < 2000; ++i) {
    primary_launches(1ns);
    gate_.remove(primary_);
    gate_.add(primary_, primary_stream_);
  }
  stop.store(true);
  waiter.join();
}

/// Refuses the first time, for an hour.
class RefusesOnce final : public GatePolicy {
 public:
  bool concerns(const Standing& mine, const Standing& other) const override {
    return outranks(other.priority, mine.priority);
  }
  Verdict decide(const Requester&, std::span<const Competitor>) const override {
    return {.admit = std::exchange(asked_, true), .retry_after = 1h};
  }

 private:
  mutable bool asked_ = false;
};

/// Stands still, and keeps how long the last wait might have taken.
class StoppedClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override { return 0ns; }
  void wait(EventCount&, std::uint32_t, std::chrono::nanoseconds deadline) override { waited_ = deadline; }
  std::chrono::nanoseconds waited_{0};
};

TEST(GateStream, AWaiterPollsIfADeviceWorksThatNotifiesNobody) {
  for (const bool asynchronous : {false, true}) {
    StoppedClock clock;
    Gate gate(std::make_unique<RefusesOnce>(), clock);
    Slot primary(Priority::kPrimary);
    Slot secondary(Priority::kSecondary);
    const Gate::Membership first(gate, primary, asynchronous ? std::make_shared<FakeStream>(clock) : nullptr);
    const Gate::Membership second(gate, secondary, nullptr);
    EXPECT_TRUE(gate.wait_turn(secondary));
    EXPECT_EQ(clock.waited_, asynchronous ? 20us : std::chrono::nanoseconds(1h));
  }
}

/// A marker is work in the primary's stream.
TEST_F(GateStreamTest, AJobThatThePaceHoldsRecordsNoMarker) {
  gate_.set_pace({.cycle = 100ms, .share = 0.5});
  clock_.advance(60ms);
  primary_launches(1ms);
  EXPECT_FALSE(gate_.try_enter(secondary_));
  auto waiter = std::async(std::launch::async, [this] { return gate_.wait_turn(secondary_); });
  for (int i = 0; i < 3; ++i) {
    while (clock_.waiting() == 0) {
      std::this_thread::sleep_for(1ms);
    }
    primary_launches(1ms);
    for (int look = 0; look < 2; ++look) {  // the second time, the primary has settled
      clock_.advance(5ms);
      std::this_thread::sleep_for(5ms);
    }
  }
  EXPECT_EQ(primary_stream_->markers_recorded(), 0U);
  primary_launches(500ms);
  while (waiter.wait_for(1ms) != std::future_status::ready) {
    clock_.advance(kStreamGrace);
  }
  EXPECT_TRUE(waiter.get());
  EXPECT_GT(primary_stream_->markers_recorded(), 0U);
}

TEST(GateStream, APolicyThatIgnoresOtherJobsNeedsNoMarkers) {
  for (const auto run_ahead :
       {std::optional<std::chrono::nanoseconds>(), std::optional<std::chrono::nanoseconds>(1ms)}) {
    ManualClock clock;
    const auto stream = std::make_shared<FakeStream>(clock);
    Gate gate(make_gate_policy("priority", {.max_wait = 1s, .run_ahead = run_ahead}), clock);
    Slot primary(Priority::kPrimary);
    Slot secondary(Priority::kSecondary);
    const Gate::Membership first(gate, primary, stream);
    const Gate::Membership second(gate, secondary, std::make_shared<FakeStream>(clock));
    gate.set_pace({.share = 0.5});
    primary.enter();
    stream->launch(1h);
    primary.leave();
    EXPECT_TRUE(gate.try_enter(secondary));
    EXPECT_EQ(stream->markers_recorded(), 0U);
  }
}

class RunAheadGateTest : public GateStreamTest {
 protected:
  RunAheadGateTest() : GateStreamTest("priority", {.grace = kStreamGrace, .run_ahead = 500us}) {
    secondary_.ahead = &ahead_;
  }

  bool secondary_launches(std::chrono::nanoseconds work) {
    if (!gate_.try_enter(secondary_)) {
      return false;
    }
    secondary_stream_->launch(work);
    ahead_.launched(work);
    return true;
  }

  RunAhead ahead_{secondary_stream_};
};

TEST_F(RunAheadGateTest, BoundsWhatALowerJobHasLaunched) {
  int launched = 0;
  while (secondary_launches(100us)) {
    ++launched;
  }
  EXPECT_EQ(launched, 6) << "no more than 500 us outstanding before each launch";
  clock_.advance(100us);
  EXPECT_TRUE(secondary_launches(100us));
  EXPECT_FALSE(secondary_launches(100us));
}

TEST_F(RunAheadGateTest, OneLongOpMayGoAndHoldsTheNext) {
  EXPECT_TRUE(secondary_launches(10ms));
  clock_.advance(9ms);
  EXPECT_FALSE(secondary_launches(1us));
  clock_.advance(1ms);
  EXPECT_TRUE(secondary_launches(1us));
}

TEST_F(RunAheadGateTest, DoesNotBoundTheHighest) {
  EXPECT_EQ(primary_.interrupts.load() & kContended, 0U);
  EXPECT_NE(secondary_.interrupts.load() & kContended, 0U);
}

TEST(DeviceTimes, ReadsDurationsAndGapsWhenTheDeviceHasDoneThem) {
  ManualClock clock;
  const auto stream = std::make_shared<FakeStream>(clock);
  DeviceTimes times(stream);
  times.begin(true);
  stream->launch(3ms);
  times.end(1);
  EXPECT_FALSE(times.next());
  clock.advance(5ms);  // the stream has nothing to do for 2 ms
  times.begin(true);
  stream->launch(4ms);
  times.end(2);
  const auto first = times.next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->context, 1U);
  EXPECT_EQ(first->duration, 3ms);
  EXPECT_FALSE(first->gap);
  EXPECT_FALSE(times.next()) << "not done yet";
  clock.advance(4ms);
  const auto second = times.next();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->before, 1U);
  EXPECT_EQ(second->gap, 2ms);
  EXPECT_EQ(second->duration, 4ms);
}

TEST(DeviceTimes, AnOpThatWasNotTimedBreaksTheGap) {
  ManualClock clock;
  const auto stream = std::make_shared<FakeStream>(clock);
  DeviceTimes times(stream);
  while (stream->stamp() < 2 * stream->stamps()) {  // long after the first stamps
  }
  for (const bool timed : {true, false, true}) {
    times.begin(timed);
    stream->launch(1ms);
    times.end(7);
  }
  clock.advance(3ms);
  EXPECT_FALSE(times.next().value().gap);
  EXPECT_FALSE(times.next().value().gap);
  EXPECT_FALSE(times.next());
}

TEST(DeviceTimes, ReadsNothingWhileAGraphIsCaptured) {
  ManualClock clock;
  const auto stream = std::make_shared<FakeStream>(clock);
  DeviceTimes times(stream);
  times.begin(true);
  stream->launch(1ms);
  times.end(1);
  clock.advance(1ms);
  stream->set_capturing(true);
  times.begin(true);
  times.end(2);
  EXPECT_FALSE(times.next());
  stream->set_capturing(false);
  EXPECT_EQ(times.next()->context, 1U);
  EXPECT_FALSE(times.next()) << "what is captured does not run";
}

TEST(DeviceTimes, ForgetsOpsWhoseStampsWereUsedAgain) {
  ManualClock clock;
  const auto stream = std::make_shared<FakeStream>(clock);
  DeviceTimes times(stream);
  for (std::size_t op = 0; op < stream->stamps(); ++op) {  // two stamps each
    times.begin(true);
    stream->launch(1ms);
    times.end(op);
  }
  clock.advance(1s);
  std::size_t read = 0;
  std::uint64_t last = 0;
  while (const auto timed = times.next()) {
    EXPECT_EQ(timed->duration, 1ms);
    last = timed->context;
    ++read;
  }
  EXPECT_EQ(last, stream->stamps() - 1);
  EXPECT_EQ(read, stream->stamps() / 2 - 1) << "an op and the gap before it take three stamps";
}

/// A job whose ops are launched, in virtual time, and watched.
class WatchedStreamTest : public ::testing::Test {
 protected:
  WatchedStreamTest() {
    gate_.add(slot_, stream_);
    watch_.follow(stream_);
  }
  ~WatchedStreamTest() override { gate_.remove(slot_); }

  /// The host launches, and has 1 us of its own to do.
  void op(std::uint64_t signature, std::chrono::nanoseconds work) {
    watch_.arrive(UnknownCall{signature});
    slot_.enter();
    watch_.begin();
    stream_->launch(work);
    clock_.advance(1us);
    watch_.end();
  }
  void step() {
    watch_.begin_batch();
    op(1, 400us);
    op(2, 100us);
    clock_.advance(2ms);  // the host does something else: a gap on the device
  }
  const OpProfile& profile(std::uint64_t signature) {
    profiles_ = watch_.profiles();
    return *std::find_if(profiles_.begin(), profiles_.end(),
                         [&](const OpProfile& profile) { return profile.signature == signature; });
  }

  ManualClock clock_;
  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>(clock_);
  Gate gate_{make_gate_policy("best_fit", {}), clock_};
  Slot slot_{Priority::kPrimary};
  OpWatch watch_{slot_, gate_, clock_, {.shortest_gap = 500us}};
  std::vector<OpProfile> profiles_;
};

TEST_F(WatchedStreamTest, LearnsTheDevicesTimesNotTheHosts) {
  for (int i = 0; i < 20; ++i) {
    step();
  }
  EXPECT_NEAR(profile(1).duration.mean, 400e3, 1);
  EXPECT_NEAR(profile(2).duration.mean, 100e3, 1);
  EXPECT_NEAR(profile(1).gap.mean, 0, 1) << "the second op was in the queue before the first had ended";
  EXPECT_NEAR(profile(2).gap.mean, 1502e3, 1e3);
}

TEST_F(WatchedStreamTest, OpsThatFitAreAdmittedWhileTheStreamWaitsForOtherRanks) {
  gate_.add(slot_, stream_);
  Slot lower(Priority::kSecondary);
  const Gate::Membership member(gate_, lower, nullptr);
  const auto admitted = [&](std::chrono::nanoseconds op) {
    lower.next_op = op.count();
    lower.is_guess = false;
    return gate_.try_enter(lower);
  };
  const auto launch_step = [&] {
    watch_.begin_batch();
    op(1, 100us);
    slot_.waits.begin(*stream_, watch_.next_gap());
    stream_->launch(3ms);  // the collective
    slot_.waits.end(*stream_);
    op(2, 100us);
  };
  for (int i = 0; i < 20; ++i) {
    launch_step();
    clock_.advance(10ms);
  }
  launch_step();
  clock_.advance(110us);
  EXPECT_TRUE(admitted(1ms));
  EXPECT_FALSE(admitted(5ms)) << "the collective is expected to end before";
  gate_.remove(slot_);
}

TEST_F(WatchedStreamTest, AFailureAtTheEndOfAnOpIsThrownAtTheNext) {
  watch_.arrive(UnknownCall{1});
  watch_.begin();
  slot_.enter();
  stream_->fail();
  watch_.end();
  EXPECT_FALSE(slot_.inside());
  EXPECT_THROW(watch_.arrive(UnknownCall{2}), std::runtime_error);
  EXPECT_THROW(watch_.begin(), std::runtime_error);
  EXPECT_FALSE(slot_.inside());
  watch_.unfollow();
  EXPECT_EQ(slot_.ahead, nullptr);
}

TEST_F(WatchedStreamTest, StampsInTheMeasuringStageOnly) {
  for (int i = 0; i < 20; ++i) {
    step();
  }
  const auto before = stream_->stamp();
  for (int i = 0; i < 64; ++i) {
    step();
  }
  EXPECT_LT(stream_->stamp() - before, 24U) << "of 128 ops, the sample: one of 64, and the op after it";
}

TEST_F(WatchedStreamTest, TellsOfTheGapBeforeTheDeviceHasComeToIt) {
  for (int i = 0; i < 20; ++i) {
    step();
  }
  watch_.begin_batch();
  op(1, 400us);
  EXPECT_EQ(slot_.gap_mean.load(), 0);
  op(2, 100us);
  EXPECT_NEAR(static_cast<double>(slot_.gap_mean.load()), 1502e3, 1e3);
}

TEST_F(WatchedStreamTest, ALowerJobFillsTheGapOfTheDeviceAndNothingThatIsLonger) {
  Slot lower{Priority::kSecondary};
  gate_.add(lower);
  for (int i = 0; i < 20; ++i) {
    step();
  }
  watch_.begin_batch();
  op(1, 400us);
  op(2, 100us);
  lower.next_op.store(std::chrono::nanoseconds(1ms).count());
  EXPECT_FALSE(gate_.try_enter(lower)) << "the device has work for 498 us";
  clock_.advance(498us);
  EXPECT_TRUE(gate_.try_enter(lower));
  lower.next_op.store(std::chrono::nanoseconds(3ms).count());
  EXPECT_FALSE(gate_.try_enter(lower));
  gate_.remove(lower);
}

TEST_F(WatchedStreamTest, ALowerJobCountsWhatItHasLaunchedByWhatItExpects) {
  Slot lower{Priority::kSecondary};
  gate_.add(lower, stream_);
  OpWatch watch(lower, gate_, clock_, {});
  watch.follow(stream_);
  const auto launch = [&] {
    watch.arrive(UnknownCall{3});
    lower.enter();
    watch.begin();
    stream_->launch(400us);
    watch.end();
  };
  launch();
  EXPECT_EQ(lower.ahead->outstanding(), 20us) << "nothing is known yet";
  for (int op = 0; op < 100; ++op) {
    clock_.advance(1ms);
    EXPECT_EQ(lower.ahead->outstanding(), 0ns);
    launch();
  }
  EXPECT_EQ(lower.ahead->outstanding(), 400us);
  EXPECT_GT(watch.stats().filled, 70 * 400us);
  watch.unfollow();
  gate_.remove(lower);
}

}  // namespace
}  // namespace torchshare
