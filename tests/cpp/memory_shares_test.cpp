#include "runtime/memory_shares.h"

#include <gtest/gtest.h>

#include "fakes/fake_device.h"

namespace torchshare {
namespace {

constexpr std::int64_t kUnlimited = MemoryBudget::kUnlimited;

class SmallDevice final : public Device {
 public:
  std::string_view name() const override { return "small"; }
  Clock& clock() override { return clock_; }
  std::unique_ptr<DeviceScope> enter(const DeviceRequest&) override { return nullptr; }
  std::optional<std::int64_t> free_memory() const override { return free; }

  std::optional<std::int64_t> free = 1000;

 private:
  ManualClock clock_;
};

class MemorySharesTest : public ::testing::Test {
 protected:
  std::unique_ptr<MemoryShares::Member> join(const std::shared_ptr<MemoryBudget>& budget) {
    return std::make_unique<MemoryShares::Member>(shares_, budget, budget->limit() != kUnlimited, [this] { ++told_; });
  }
  static std::shared_ptr<MemoryBudget> budget(std::int64_t limit = kUnlimited) {
    return std::make_shared<MemoryBudget>("a", limit);
  }

  SmallDevice device_;
  MemoryShares shares_{device_};
  int told_ = 0;
};

TEST_F(MemorySharesTest, AJobThatIsAloneHasNoLimit) {
  const auto first = budget();
  const auto member = join(first);
  EXPECT_EQ(first->limit(), kUnlimited);
}

TEST_F(MemorySharesTest, WhatIsFreeIsDividedAndDividedAnewWhenAJobBeginsOrEnds) {
  const auto first = budget();
  const auto second = budget();
  const auto one = join(first);
  const Reservation held(first, 300);
  device_.free = 700;
  auto two = join(second);
  EXPECT_EQ(first->limit(), 650);
  EXPECT_EQ(second->limit(), 350);
  auto three = join(budget());
  EXPECT_EQ(second->limit(), 233);
  three.reset();
  EXPECT_EQ(second->limit(), 350);
  two.reset();
  EXPECT_EQ(first->limit(), kUnlimited);
  EXPECT_EQ(told_, 1 + 2 + 3 + 2 + 1);
}

TEST_F(MemorySharesTest, DeclaredBudgetsArePromisedAndUnchanged) {
  const auto declared = budget(400);
  const auto other = budget();
  const auto one = join(declared);
  const Reservation held(declared, 100);
  device_.free = 900;
  const auto two = join(other);
  EXPECT_EQ(declared->limit(), 400);
  EXPECT_EQ(other->limit(), 600);
  device_.free = 90;  // less than was promised
  const auto three = join(budget());
  EXPECT_EQ(other->limit(), 30);
}

TEST_F(MemorySharesTest, HugeBudgetsLeaveOthersAnEqualPart) {
  const auto other = budget();
  const auto one = join(budget(kUnlimited - 1));
  const auto two = join(budget(kUnlimited - 1));
  const auto three = join(other);
  EXPECT_EQ(other->limit(), 1000 - 2 * 333);
}

TEST_F(MemorySharesTest, TheLastJobMayLeaveADeviceThatHasNoByteFree) {
  const auto last = budget();
  auto one = join(last);
  device_.free = 0;
  auto two = join(budget(100));
  EXPECT_EQ(last->limit(), 0);
  one.reset();
  two.reset();
  EXPECT_EQ(told_, 1 + 1) << "nobody was left to tell";
}

TEST_F(MemorySharesTest, ADeviceThatDoesNotLimitJobsLeavesThemUnlimited) {
  device_.free.reset();
  const auto first = budget();
  const auto one = join(first);
  const auto two = join(budget());
  EXPECT_EQ(first->limit(), kUnlimited);
  EXPECT_EQ(told_, 0);
}

/// The job of a test.
class FlexibleBudgetTest : public ::testing::Test {
 protected:
  std::shared_ptr<MemoryBudget> budget_ = std::make_shared<MemoryBudget>("a", 160);
};

TEST_F(FlexibleBudgetTest, TheLastSixteenthIsForWhatCannotBeRepeated) {
  budget_->set_flexible(true);
  EXPECT_THROW(Reservation(budget_, 151), BudgetExceeded);
  EXPECT_EQ(Reservation(budget_, 150).bytes(), 150);
  budget_->set_flexible(false);
  EXPECT_EQ(Reservation(budget_, 160).bytes(), 160);
}

TEST_F(FlexibleBudgetTest, ATestMayHaveOneRequestRefused) {
  budget_->refuse_after(1);
  EXPECT_EQ(Reservation(budget_, 1).bytes(), 1);
  EXPECT_THROW(Reservation(budget_, 1), BudgetExceeded);
  EXPECT_EQ(Reservation(budget_, 1).bytes(), 1);
}

}  // namespace
}  // namespace torchshare
