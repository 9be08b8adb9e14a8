#include "memory/owned_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
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
constexpr std::int64_t kMebibyte = 1 << 20;

at::Tensor a_mebibyte() {
  return at::empty({kMebibyte}, at::kByte);
}

at::Tensor thousand_floats() {
  return at::empty({1000});
}

/// Jobs that own CPU memory.
class OwnedMemoryTest : public ::testing::Test {
 protected:
  OwnedMemoryTest() { install_cpu_memory(); }

  static std::shared_ptr<MemoryOwner> caching_owner(const std::string& job = "caches",
                                                    std::int64_t limit = MemoryBudget::kUnlimited) {
    return std::make_shared<MemoryOwner>(std::make_shared<MemoryBudget>(job, limit), c10::DeviceType::CPU,
                                         MemoryOwner::Options{.meters = true, .caches = true});
  }
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

TEST_F(OwnedMemoryTest, BlocksOfAnEndedJobAreNotTheNextOnes) {
  auto first = owner("first");
  at::Tensor left;
  {
    const MemoryScope scope(first);
    left = thousand_floats();
  }
  first.reset();
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

TEST_F(OwnedMemoryTest, IgnoresOwnersOfOtherDevices) {
  const auto gpus = std::make_shared<MemoryOwner>(std::make_shared<MemoryBudget>("gpu", 1), c10::DeviceType::CUDA);
  const MemoryScope scope(gpus);
  EXPECT_NO_THROW(thousand_floats());
  EXPECT_EQ(gpus->budget()->peak(), 0);
}

TEST_F(OwnedMemoryTest, ABlockReturnsToTheCacheItCameFromWhicheverThreadFreesIt) {
  const auto mine = caching_owner();
  void* block = nullptr;
  {
    const MemoryScope scope(mine);
    at::Tensor tensor = a_mebibyte();
    block = tensor.data_ptr();
    std::thread([&] {
      const MemoryScope others(caching_owner());
      tensor.reset();
      EXPECT_NE(a_mebibyte().data_ptr(), block);
    }).join();
    EXPECT_EQ(a_mebibyte().data_ptr(), block);
    mine->trim();
    EXPECT_EQ(mine->budget()->held(), 0);
  }
  EXPECT_GE(mine->budget()->peak_cached(), kMebibyte);
  EXPECT_EQ(mine->budget()->peak(), kMebibyte) << "what is cached is not in use";
}

TEST_F(OwnedMemoryTest, CachedBlocksCountForNoBudgetAndStayInsideIt) {
  const auto mine = caching_owner("small", 3 * kMebibyte);
  const MemoryScope scope(mine);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor a = at::empty({2 * kMebibyte}, at::kByte);
    const at::Tensor b = a_mebibyte();
    EXPECT_EQ(mine->budget()->held(), 3 * kMebibyte);
    EXPECT_THROW(a_mebibyte(), BudgetExceeded);
  }
  EXPECT_LE(mine->budget()->peak_cached(), 3 * kMebibyte);
}

TEST_F(OwnedMemoryTest, AnOwnerThatDoesNotMeterCachesAndCountsNothing) {
  const auto budget = std::make_shared<MemoryBudget>("quiet", kBytes);
  const auto mine = std::make_shared<MemoryOwner>(budget, c10::DeviceType::CPU,
                                                  MemoryOwner::Options{.meters = false, .caches = true});
  const MemoryScope scope(mine);
  const at::Tensor small = thousand_floats();
  const at::Tensor large = a_mebibyte();
  EXPECT_EQ(budget->held(), 0);
  EXPECT_EQ(small.storage().data_ptr().get_deleter(), at::empty({0}).storage().data_ptr().get_deleter());
  EXPECT_TRUE(is_owners(large.storage().data_ptr().get_deleter()));
}

TEST_F(OwnedMemoryTest, TensorsOutliveTheCacheTheyCameFrom) {
  auto mine = caching_owner();
  at::Tensor left;
  {
    const MemoryScope scope(mine);
    left = at::ones({kMebibyte}, at::kByte);
  }
  mine.reset();
  EXPECT_TRUE(left.eq(1).all().item<bool>());
  char* const address = static_cast<char*>(left.data_ptr());
  left.reset();
  unsigned char resident = 0;
  EXPECT_NE(mincore(address, 1, &resident), 0) << "nobody needs it: it is unmapped";
}

TEST_F(OwnedMemoryTest, TrimsItsCacheWhenTheSystemIsShort) {
  const auto mine = caching_owner();
  const MemoryScope scope(mine);
  char* const large = static_cast<char*>(at::empty({100 * kMebibyte}, at::kByte).data_ptr());
  EXPECT_EQ(mine->budget()->peak_cached(), 100 * kMebibyte);
  unsigned char resident = 0;
  EXPECT_EQ(mincore(large + 50 * kMebibyte, 1, &resident), 0);
  shortage_count().report();
  a_mebibyte();
  EXPECT_NE(mincore(large + 50 * kMebibyte, 1, &resident), 0);
}

TEST_F(OwnedMemoryTest, TheProcessHasACacheWhenAsked) {
  void* const before = a_mebibyte().data_ptr();
  (void)before;
  cache_memory_of_process(true);
  void* const block = a_mebibyte().data_ptr();
  const at::Tensor again = a_mebibyte();
  EXPECT_EQ(again.data_ptr(), block);
  EXPECT_TRUE(is_owners(again.storage().data_ptr().get_deleter()));
  EXPECT_EQ(caching_owner()->other_owner(again.storage().data_ptr()), nullptr) << "any job may use it";
  cache_memory_of_process(false);
  EXPECT_FALSE(is_owners(a_mebibyte().storage().data_ptr().get_deleter()));
}

TEST_F(OwnedMemoryTest, TensorsThatGrowMoveBetweenTheAllocators) {
  const auto mine = caching_owner();
  const MemoryScope scope(mine);
  at::Tensor tensor = at::ones({1000});
  tensor.resize_({1'000'000});
  EXPECT_EQ(tensor[999].item<float>(), 1.0F);
  tensor.set_();
  EXPECT_EQ(mine->budget()->held(), 0);
}

TEST_F(OwnedMemoryTest, TenThreadsShareFourCaches) {
  std::vector<std::shared_ptr<MemoryOwner>> owners{caching_owner(), caching_owner(), caching_owner(), caching_owner()};
  std::mutex mutex;
  std::vector<at::Tensor> exchanged;
  std::vector<std::thread> threads;
  for (int i = 0; i < 10; ++i) {
    threads.emplace_back([&, i] {
      const MemoryScope scope(owners[static_cast<std::size_t>(i) % owners.size()]);
      for (int step = 0; step < 300; ++step) {
        at::Tensor tensor = at::full({kMebibyte / 4 + 1000 * (step % 50)}, i, at::kInt);
        at::Tensor other;
        {
          std::lock_guard lock(mutex);
          exchanged.push_back(tensor);
          if (exchanged.size() > 8) {
            other = std::move(exchanged.front());
            exchanged.erase(exchanged.begin());
          }
        }
        if (step % 100 == 50) {
          trim_caches();
        }
        const int* const values = tensor.data_ptr<int>();
        ASSERT_EQ(values[0], i);
        ASSERT_EQ(values[tensor.numel() - 1], i);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  exchanged.clear();
  for (const auto& owner : owners) {
    EXPECT_EQ(owner->budget()->held(), 0);
  }
}

TEST_F(OwnedMemoryTest, AForkedChildHasItsOwnCopyOfTheCache) {
  const auto mine = caching_owner();
  const MemoryScope scope(mine);
  at::Tensor parents = at::ones({kMebibyte}, at::kByte);
  a_mebibyte();  // cached
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    std::memset(parents.data_ptr(), 2, kMebibyte);  // not with an op: OpenMP's threads are the parent's
    parents.reset();
    const at::Tensor other = a_mebibyte();
    _exit(is_owners(other.storage().data_ptr().get_deleter()) ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(parents.eq(1).all().item<bool>());
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
