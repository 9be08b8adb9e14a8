#include "gate/op_watch.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "fakes/fake_device.h"
#include "fakes/unknown_call.h"
#include "gate/wake_cost.h"
#include "hook/op_call.h"
#include "hook/op_hook.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

constexpr auto kShortestGap = 300us;

/// A primary and a secondary at a best-fit gate, watched, under a clock that the test moves.
class OpWatchTest : public ::testing::Test {
 protected:
  OpWatchTest() {
    gate_.add(primary_);
    gate_.add(secondary_);
  }
  ~OpWatchTest() override {
    gate_.remove(primary_);
    gate_.remove(secondary_);
  }

  /// Outside for `gap`, then inside op `signature` for `duration`.
  void op(OpWatch& watch, Slot& slot, nanoseconds gap, std::uint64_t signature, nanoseconds duration) {
    clock_.advance(gap);
    watch.arrive(UnknownCall{signature});
    slot.enter();
    watch.begin();
    clock_.advance(duration);
    watch.end();
  }
  /// A step of the primary: two ops with a gap of 20 us between them, then one of `gap`.
  void step(nanoseconds gap) {
    op(watch_, primary_, gap, 1, 100us);
    op(watch_, primary_, 20us, 2, 50us);
  }
  void steps(int count, nanoseconds gap) {
    for (int i = 0; i < count; ++i) {
      step(gap);
    }
  }
  bool secondary_enters(nanoseconds expected) {
    secondary_.next_op.store(expected.count());
    return gate_.try_enter(secondary_);
  }

  static constexpr int kWarm = 60;  // until the context of every op is full and each was measured often enough

  ManualClock clock_;
  Gate gate_{make_gate_policy("best_fit", {.grace = 200us}), clock_};
  Slot primary_{Priority::kPrimary};
  Slot secondary_{Priority::kSecondary};
  OpWatch watch_{primary_, gate_, clock_, {.shortest_gap = kShortestGap}};
  OpWatch lower_{secondary_, gate_, clock_, {.shortest_gap = kShortestGap}};
};

TEST_F(OpWatchTest, MeasuresDurationsAndGapsByPlace) {
  OpWatch watch(primary_, gate_, clock_, {.record = true});
  for (int i = 0; i < kWarm; ++i) {
    op(watch, primary_, 2ms, 1, 100us);
    op(watch, primary_, 20us, 2, 50us);
    watch.end_step();
  }
  EXPECT_EQ(watch.ops_per_step(), 2U);
  const auto profiles = watch.profiles();
  const auto& last = profiles.back();
  const bool is_first = last.signature == 1;
  EXPECT_NEAR(last.duration.mean, is_first ? 100'000 : 50'000, 1);
  EXPECT_NEAR(last.gap.mean, is_first ? 20'000 : 2'000'000, 1);
  EXPECT_EQ(last.text, is_first ? "op 1" : "op 2");
  ASSERT_EQ(watch.trace().ops.size(), 2U * kWarm);
  EXPECT_EQ(watch.trace().step_ends.size(), static_cast<std::size_t>(kWarm));
  EXPECT_DOUBLE_EQ(watch.trace().ops.back().gap, 20'000);
  EXPECT_DOUBLE_EQ(watch.trace().ops.back().duration, 50'000);
}

TEST_F(OpWatchTest, RecordsHowMuchOfAGapWasAWaitForInput) {
  OpWatch watch(primary_, gate_, clock_, {.record = true});
  op(watch, primary_, 0ns, 1, 100us);
  clock_.advance(3ms);
  watch.begin_idle(clock_.now());
  clock_.advance(1ms);
  watch.end_idle(clock_.now());
  op(watch, primary_, 2ms, 2, 50us);
  EXPECT_DOUBLE_EQ(watch.trace().ops.back().gap, 6e6);
  EXPECT_DOUBLE_EQ(watch.trace().ops.back().idle, 1e6);
  op(watch, primary_, 2ms, 2, 50us);
  EXPECT_DOUBLE_EQ(watch.trace().ops.back().idle, 0);
}

TEST_F(OpWatchTest, KeepsNoTraceUnlessItIsToRecord) {
  steps(kWarm, 2ms);
  watch_.end_step();
  EXPECT_TRUE(watch_.trace().ops.empty());
  EXPECT_TRUE(watch_.trace().step_ends.empty());
}

TEST_F(OpWatchTest, OpensALongGapForOpsThatFitAndNoOther) {
  steps(kWarm, 2ms);
  EXPECT_TRUE(secondary_enters(1900us));  // at once: no grace
  EXPECT_FALSE(secondary_enters(2100us));
  clock_.advance(1500us);
  EXPECT_FALSE(secondary_enters(600us));
  EXPECT_TRUE(secondary_enters(400us));
}

TEST_F(OpWatchTest, SkipsGapsBelowTheThreshold) {
  steps(kWarm, 250us);
  EXPECT_EQ(watch_.stats().gaps_opened, 0U);
  EXPECT_FALSE(secondary_enters(1us));
  clock_.advance(199us);
  EXPECT_FALSE(secondary_enters(1us));
  clock_.advance(1us);
  EXPECT_TRUE(secondary_enters(1us));  // the grace
}

TEST_F(OpWatchTest, MeasuresEachPlaceUntilItIsKnownAndThenCountsItsGapByTheForecast) {
  steps(kWarm, 250us);
  const auto before = watch_.stats();
  EXPECT_GT(before.unknown_ops, 0U);
  EXPECT_LT(before.unknown_ops, 80U);
  steps(10, 250us);
  EXPECT_EQ(watch_.stats().unknown_ops, before.unknown_ops);
  EXPECT_EQ(watch_.stats().ops - before.ops, 20U);
  EXPECT_NEAR(static_cast<double>((watch_.stats().capacity - before.capacity).count()), 10 * 270e3, 10e3);
}

TEST_F(OpWatchTest, AnEarlyReturnClosesTheGapAndShortensTheForecast) {
  steps(kWarm, 2ms);
  EXPECT_TRUE(secondary_enters(1500us));
  step(1ms);
  primary_.enter();
  EXPECT_FALSE(secondary_enters(1us));
  primary_.leave();
  steps(60, 1ms);
  EXPECT_FALSE(secondary_enters(1500us));
  EXPECT_TRUE(secondary_enters(900us));
}

TEST_F(OpWatchTest, AFilledGapIsNoReasonToExpectLongerOnes) {
  steps(kWarm, 2ms);
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(secondary_enters(1900us));
    step(2500us);  // the secondary made it longer
  }
  EXPECT_FALSE(secondary_enters(2100us));
  EXPECT_EQ(watch_.stats().gaps_filled, 60U);
}

TEST_F(OpWatchTest, AFilledWaitForInputIsAsLongAsItIs) {
  const auto wait = [&](nanoseconds time) {
    watch_.begin_idle(clock_.now());
    step(time);
    watch_.end_idle(clock_.now());
  };
  for (int i = 0; i < kWarm; ++i) {
    wait(2ms);
  }
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(secondary_enters(1900us));
    wait(4ms);  // the request came later
  }
  EXPECT_TRUE(secondary_enters(3500us));
}

TEST_F(OpWatchTest, AShortGapIsNotTakenForTheLongOneBefore) {
  steps(kWarm, 2ms);
  op(watch_, primary_, 500us, 1, 100us);  // early: what was left of the long gap is no longer there
  EXPECT_FALSE(secondary_enters(1us));
}

TEST_F(OpWatchTest, CountsReturnsIntoAnOpOfALowerJobAndWhatTheyCost) {
  steps(kWarm, 2ms);
  lower_.arrive(UnknownCall{9});
  ASSERT_TRUE(secondary_enters(1ms));
  secondary_.enter();
  lower_.begin();
  op(watch_, primary_, 2ms, 1, 130us);  // 30 us longer than ever
  op(watch_, primary_, 20us, 2, 50us);
  EXPECT_TRUE(gate_.is_filled());
  lower_.end();
  EXPECT_FALSE(gate_.is_filled());
  step(2ms);
  const GapStats stats = watch_.stats();
  EXPECT_EQ(stats.gaps_filled, 1U);
  EXPECT_EQ(stats.returns_into_filler, 1U);
  EXPECT_NEAR(static_cast<double>(stats.cost.count()), 30e3, 100);
  EXPECT_NEAR(static_cast<double>(lower_.stats().filled.count()), 2200e3, 100);
}

TEST_F(OpWatchTest, AnOpThatIsNotKnownIsExpectedToTakeAsLongAsMostOthers) {
  for (int i = 0; i < 40; ++i) {
    op(lower_, secondary_, 1us, 100 + static_cast<std::uint64_t>(i), 1ms);  // never the same
  }
  lower_.arrive(UnknownCall{7});
  EXPECT_GE(secondary_.next_op.load(), 1'000'000);
  EXPECT_LE(secondary_.next_op.load(), 1'200'000);
  OpWatch fresh(secondary_, gate_, clock_, {});
  fresh.arrive(UnknownCall{7});
  EXPECT_EQ(secondary_.next_op.load(), -1);
}

TEST_F(OpWatchTest, AKnownOpIsExpectedToTakeItsMeanAndItsSpread) {
  for (int i = 0; i < 200; ++i) {
    op(lower_, secondary_, 1us, 5, i % 2 == 0 ? 1ms : 3ms);
  }
  lower_.arrive(UnknownCall{5});
  EXPECT_NEAR(static_cast<double>(secondary_.next_op.load()), 3e6, 3e5);
}

TEST_F(OpWatchTest, BatchesOfEverySizeAreKnownOnceEachWasSeenOftenEnough) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t size = 10 * (1 + random() % 8);
    watch_.begin_batch();
    op(watch_, primary_, 2ms, size, 100us);
    op(watch_, primary_, 20us, size + 1, 50us);
  }
  EXPECT_LT(watch_.stats().unknown_ops, 2U * 8 * 7);
}

TEST_F(OpWatchTest, ABatchBeginsAtItsFirstOpOnly) {
  for (int i = 0; i < kWarm; ++i) {
    watch_.begin_batch();
    op(watch_, primary_, 2ms, 5, 100us);
    op(watch_, primary_, 20us, 5, 300us);  // the same op at another place
  }
  std::vector<double> durations;
  for (const OpProfile& profile : watch_.profiles()) {
    durations.push_back(std::round(profile.duration.mean));
  }
  EXPECT_THAT(durations, ::testing::UnorderedElementsAre(100e3, 300e3));
}

/// Times off by ten, either way: nothing hangs, and the forecast finds back.
class WrongProfile : public OpWatchTest, public ::testing::WithParamInterface<double> {};

TEST_P(WrongProfile, IsCorrectedByWhatIsSeen) {
  OpWatch right(primary_, gate_, clock_, {.record = true});
  for (int i = 0; i < kWarm; ++i) {
    op(right, primary_, 2ms, 1, 100us);
    op(right, primary_, 20us, 2, 50us);
  }
  std::vector<OpProfile> wrong = right.profiles();
  for (OpProfile& profile : wrong) {
    profile.gap.mean *= GetParam();
    profile.gap.spread = 0.05 * profile.gap.mean;
    profile.duration.mean *= GetParam();
  }
  OpWatch watch(primary_, gate_, clock_, {.shortest_gap = kShortestGap, .known = wrong});
  const auto two_ops = [&] {
    op(watch, primary_, 2ms, 1, 100us);
    op(watch, primary_, 20us, 2, 50us);
  };
  for (int i = 0; i < 20; ++i) {
    two_ops();
    // The bound degrades, but the waiting job is admitted: by the forecast or by the grace.
    clock_.advance(100ms);
    secondary_enters(5ms);  // observes the primary
    clock_.advance(200us);
    EXPECT_TRUE(secondary_enters(5ms));
  }
  for (int i = 0; i < 3000; ++i) {
    two_ops();
  }
  EXPECT_TRUE(secondary_enters(1500us));
  EXPECT_FALSE(secondary_enters(2500us));
}

INSTANTIATE_TEST_SUITE_P(TenTimes, WrongProfile, ::testing::Values(0.1, 10.0),
                         [](const auto& info) { return info.param < 1 ? "TooShort" : "TooLong"; });

TEST(WakeCost, IsMeasuredOnThisMachine) {
  const WakeCost cost = measure_wake_cost();
  EXPECT_GT(cost.notify, 0ns);
  EXPECT_GT(cost.latency, 0ns);
  EXPECT_LT(cost.shortest_gap(), 1s);
  EXPECT_EQ((WakeCost{.notify = 2us, .latency = 50us}.shortest_gap()), 200us);
  EXPECT_EQ((WakeCost{.notify = 1us, .latency = 80us}.shortest_gap()), 160us);
}

/// A job that keeps the calls that it saw.
class Spelled final : public OpContext {
 public:
  Spelled() : OpContext(Priority::kPrimary, at::detail::createCPUGenerator(1)) {
    install_op_hook();
    watch_ = std::make_unique<OpWatch>(slot_, gate_, clock_, WatchOptions{.record = true});
  }
  void handle_interrupts() override {}
  std::vector<OpProfile> profiles() const { return watch_->profiles(); }
  std::size_t places() const { return watch_->trace().ops.size(); }

 private:
  ManualClock clock_;
  Gate gate_{make_gate_policy("priority", {}), clock_};
};

std::vector<OpProfile> profiles_of(const std::function<void()>& body) {
  Spelled job;
  const ContextScope scope(job);
  for (int i = 0; i < 100; ++i) {
    body();
  }
  return job.profiles();
}

TEST(OpCall, SpellsNamesShapesAndTypesOfTypedAndBoxedCalls) {
  const at::Tensor a = at::ones({2, 3});
  const at::Tensor b = at::ones({3, 4}, at::kDouble).to(at::kFloat);
  EXPECT_EQ(profiles_of([&] { a.mm(b); }).back().text, "aten::mm(Float[2, 3], Float[3, 4])");
  at::Tensor c = at::ones({5}, at::kDouble);
  EXPECT_EQ(profiles_of([&] { c.atan_(); }).back().text, "aten::atan_(Double[5])");
  EXPECT_EQ(profiles_of([&] { at::cat({a, a}); }).back().text, "aten::cat(Float[2, 3]*2)");
  EXPECT_EQ(profiles_of([&] { c.uniform_(0, 1); }).back().text, "aten::uniform_(Double[5])");
}

TEST(OpCall, TellsApartShapesAndTypesButNotValues) {
  const auto signature = [](const std::function<void()>& body) { return profiles_of(body).back().signature; };
  at::Tensor small = at::ones({4});
  at::Tensor large = at::ones({8});
  at::Tensor doubles = at::ones({4}, at::kDouble);
  for (const auto& op : {+[](at::Tensor& x) { x.mul_(2); }, +[](at::Tensor& x) { x.atan_(); }}) {
    const auto first = signature([&] { op(small); });
    EXPECT_EQ(first, signature([&] { op(small); }));
    EXPECT_NE(first, signature([&] { op(large); }));
    EXPECT_NE(first, signature([&] { op(doubles); }));
  }
  EXPECT_EQ(signature([&] { small.add_(small, 1); }), signature([&] { small.add_(small, 2); }));
  EXPECT_NE(signature([&] { at::zeros({4}); }), signature([&] { at::zeros({5}); }));
  EXPECT_NE(signature([&] { at::cat({small}); }), signature([&] { at::cat({small, small}); }));
}

TEST(OpCall, CopesWithTensorsWhoseSizesCannotBeAskedFor) {
  Spelled job;
  const ContextScope scope(job);
  const at::Tensor nested = at::_nested_tensor_from_tensor_list({at::ones({2, 3}), at::ones({1, 3})});
  nested.mul(nested);
  const at::Tensor sparse = at::eye(3).to_sparse();
  sparse.add(sparse);
  at::ones({3}).index({at::ones({3}, at::kBool)});
  const at::Tensor undefined;
  at::native_batch_norm(at::ones({2, 3}), undefined, undefined, undefined, undefined, true, 0.1, 1e-5);
  const auto empty_list = c10::List<std::optional<at::Tensor>>({std::optional<at::Tensor>(), at::tensor({0})});
  at::ones({3, 3}).index(empty_list);
  EXPECT_GT(job.places(), 3U);
}

}  // namespace
}  // namespace torchshare
