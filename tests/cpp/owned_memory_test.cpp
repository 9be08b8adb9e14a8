#include "memory/owned_memory.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "memory/cpu_memory.h"

namespace torchshare {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kBytes = 4000;

at::Tensor thousand_floats() {
  return at::empty({1000});
}

/// Jobs that own CPU memory.
class OwnedMemoryTest : public ::testing::Test {
 protected:
  OwnedMemoryTest() { install_cpu_memory(); }

  static std::shared_ptr<MemoryOwner> owner(const std::string& job = "a",
                                            std::int64_t limit = MemoryBudget::kUnlimited) {
    return std::make_shared<MemoryOwner>(std::make_shared<MemoryBudget>(job, limit), c10::DeviceType::CPU);
  }
};

TEST_F(OwnedMemoryTest, CountsWhatIsHeldAndTheMost) {
  const auto mine = owner();
  const MemoryScope scope(mine);
  at::Tensor a = thousand_floats();
  at::Tensor b = thousand_floats();
  EXPECT_EQ(mine->budget()->held(), 2 * kBytes);
  a.reset();
  EXPECT_EQ(mine->budget()->held(), kBytes);
  b = thousand_floats();
  EXPECT_EQ(mine->budget()->peak(), 2 * kBytes);
}

TEST_F(OwnedMemoryTest, CountsItsOwnThreadOnlyAndOnlyInsideTheScope) {
  const auto mine = owner();
  {
    const MemoryScope scope(mine);
    std::thread([] { thousand_floats(); }).join();
  }
  thousand_floats();
  EXPECT_EQ(mine->budget()->peak(), 0);
}

TEST_F(OwnedMemoryTest, ReturnsABlockToItsBudgetFromAnyThread) {
  const auto first = owner("first");
  at::Tensor kept;
  {
    const MemoryScope scope(first);
    kept = thousand_floats();
  }
  EXPECT_EQ(first->budget()->held(), kBytes);
  const auto second = owner("second");
  const MemoryScope scope(second);
  kept.reset();
  EXPECT_EQ(first->budget()->held(), 0);
  EXPECT_EQ(second->budget()->held(), 0);
}

TEST_F(OwnedMemoryTest, ReturnsARawBlockToItsBudgetFromAnyThread) {
  c10::Allocator& allocator = *c10::GetAllocator(c10::DeviceType::CPU);
  const auto first = owner("first");
  void* block = nullptr;
  {
    const MemoryScope scope(first);
    block = allocator.raw_allocate(kBytes);
  }
  EXPECT_EQ(first->budget()->held(), kBytes);
  const MemoryScope scope(owner("second"));
  allocator.raw_deallocate(block);
  EXPECT_EQ(first->budget()->held(), 0);
}

TEST_F(OwnedMemoryTest, MeasuresTheMostSinceItWasAskedTo) {
  const auto mine = owner();
  const MemoryScope scope(mine);
  at::empty({5, 1000});
  const at::Tensor held = thousand_floats();
  mine->budget()->begin_high_water();
  EXPECT_EQ(mine->budget()->high_water(), kBytes);
  thousand_floats();
  EXPECT_EQ(mine->budget()->high_water(), 2 * kBytes);
}

TEST_F(OwnedMemoryTest, RefusesRequestsBeyondTheBudgetAndChangesNothing) {
  const auto mine = owner("small", 3 * kBytes);
  const MemoryScope scope(mine);
  const at::Tensor a = thousand_floats();
  std::optional<at::Tensor> b = at::empty({2, 1000});
  EXPECT_THAT([] { thousand_floats(); },
              ThrowsMessage<BudgetExceeded>(AllOf(HasSubstr("job 'small'"), HasSubstr("0.01 of 0.01 MiB in use"))));
  EXPECT_EQ(mine->budget()->held(), 3 * kBytes);
  b.reset();
  EXPECT_NO_THROW(thousand_floats());
}

TEST_F(OwnedMemoryTest, WhatTorchCannotAllocateIsNeverHeld) {
  const auto mine = owner();
  const MemoryScope scope(mine);
  const at::Tensor a = thousand_floats();
  EXPECT_THROW(at::empty({std::int64_t{1} << 55}), c10::Error);
  EXPECT_EQ(mine->budget()->held(), kBytes);
  EXPECT_EQ(mine->budget()->peak(), kBytes);
}

TEST_F(OwnedMemoryTest, TensorsThatGrowAreCounted) {
  const auto mine = owner("grows", 2 * kBytes);
  const MemoryScope scope(mine);
  at::Tensor tensor = thousand_floats();
  EXPECT_THROW(tensor.resize_({10, 1000}), BudgetExceeded);
  EXPECT_EQ(tensor.numel(), 10'000);  // torch sets the sizes first
  EXPECT_EQ(mine->budget()->held(), kBytes);
}

TEST_F(OwnedMemoryTest, ManyThreadsNeverHoldMoreThanTheLimit) {
  const auto mine = owner("shared", 10 * kBytes);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const MemoryScope scope(mine);
      for (int step = 0; step < 2000; ++step) {
        try {
          const at::Tensor a = at::empty({3, 1000});
          const at::Tensor b = at::empty({3, 1000});
        } catch (const BudgetExceeded&) {
          continue;  // expected for some of them
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(mine->budget()->held(), 0);
  EXPECT_LE(mine->budget()->peak(), 10 * kBytes);
  EXPECT_GE(mine->budget()->peak(), 6 * kBytes);
}

TEST_F(OwnedMemoryTest, KnowsTheOwnerOfATensor) {
  auto first = owner("first");
  const auto second = owner("second");
  const at::Tensor before = thousand_floats();
  at::Tensor firsts;
  {
    const MemoryScope scope(first);
    firsts = thousand_floats();
  }
  const auto owner_of = [](const MemoryOwner& mine, const at::Tensor& tensor) {
    const auto other = mine.other_owner(tensor.storage().data_ptr());
    return other == nullptr ? "" : other->job();
  };
  EXPECT_EQ(owner_of(*second, firsts), "first");
  EXPECT_EQ(owner_of(*second, firsts.view({10, 100})), "first");
  EXPECT_EQ(owner_of(*first, firsts), "");
  EXPECT_EQ(owner_of(*second, before), "");
  first.reset();
  EXPECT_EQ(owner_of(*second, firsts), "") << "an owner that is gone owns nothing";
}

TEST_F(OwnedMemoryTest, AnOwnerPrefersADeleterWithoutBlocksOfEndedJobs) {
  const auto make = [](const std::shared_ptr<MemoryOwner>& owner) {
    const MemoryScope scope(owner);
    return thousand_floats();
  };
  const at::Tensor left = make(owner("first"));
  const auto next = owner("next");
  EXPECT_NE(next->deleter(), left.storage().data_ptr().get_deleter());
}

TEST_F(OwnedMemoryTest, BlocksOfAnEndedJobAreNotTheNextOnes) {
  std::vector<std::shared_ptr<MemoryOwner>> owners;
  std::vector<at::Tensor> all_left;
  for (int i = 0; i < 100; ++i) {  // more than there are deleters
    owners.push_back(owner(std::to_string(i)));
    const MemoryScope scope(owners.back());
    all_left.push_back(thousand_floats());
  }
  const at::Tensor left = all_left.front();
  owners.clear();
  const auto next = owner("next");  // reuses the first one's deleter
  const auto other = owner("other");
  EXPECT_EQ(other->other_owner(left.storage().data_ptr()), nullptr);
  at::Tensor nexts;
  {
    const MemoryScope scope(next);
    nexts = thousand_floats();
  }
  EXPECT_EQ(nexts.storage().data_ptr().get_deleter(), left.storage().data_ptr().get_deleter());
  EXPECT_NE(other->other_owner(nexts.storage().data_ptr()), nullptr);
}

TEST_F(OwnedMemoryTest, HasDeletersForManyOwners) {
  std::vector<std::shared_ptr<MemoryOwner>> owners;
  for (int i = 0; i < 100; ++i) {
    owners.push_back(owner(std::to_string(i)));
  }
  const MemoryScope scope(owners.back());
  const at::Tensor tensor = thousand_floats();
  EXPECT_EQ(owners.back()->budget()->held(), kBytes);
  EXPECT_EQ(owners.front()->other_owner(tensor.storage().data_ptr()), nullptr);
}

TEST_F(OwnedMemoryTest, OneOwnerAfterAnotherIsIdentified) {
  for (int i = 0; i < 200; ++i) {
    const auto one = owner(std::to_string(i));
    ASSERT_TRUE(one->is_identified()) << i;
    const MemoryScope scope(one);
    thousand_floats();
  }
  std::vector<std::shared_ptr<MemoryOwner>> owners;
  for (int i = 0; i < 64; ++i) {
    owners.push_back(owner(std::to_string(i)));
  }
  EXPECT_FALSE(owners.back()->is_identified()) << "there are 63 at once";
}

TEST_F(OwnedMemoryTest, IgnoresOwnersOfOtherDevices) {
  const auto gpus = std::make_shared<MemoryOwner>(std::make_shared<MemoryBudget>("gpu", 1), c10::DeviceType::CUDA);
  const MemoryScope scope(gpus);
  EXPECT_NO_THROW(thousand_floats());
  EXPECT_EQ(gpus->budget()->peak(), 0);
}

TEST_F(OwnedMemoryTest, AForkedChildFreesWhatItHasWhileOtherThreadsAllocate) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const MemoryScope scope(owner());
      while (!stop) {
        thousand_floats();
      }
    });
  }
  const auto mine = owner();
  const MemoryScope scope(mine);
  for (int round = 0; round < 300; ++round) {
    at::Tensor held = thousand_floats();
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // it hangs if it inherits a locked ledger
      c10::Allocator& allocator = *c10::GetAllocator(c10::DeviceType::CPU);
      allocator.raw_deallocate(allocator.raw_allocate(64));
      held.reset();
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status)) << "in round " << round;
  }
  stop = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(OwnedMemoryTest, AForkedChildIsNoJob) {
  const auto mine = owner("parent", kBytes);
  const MemoryScope scope(mine);
  const at::Tensor full = thousand_floats();
  const pid_t child = fork();
  if (child == 0) {
    try {
      thousand_floats();
      _exit(0);
    } catch (...) {
      _exit(1);
    }
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace torchshare
