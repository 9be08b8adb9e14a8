#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "memory/cpu_memory.h"
#include "memory/owned_memory.h"

namespace torchshare {
namespace {

constexpr std::int64_t kMebibyte = 1 << 20;

at::Tensor a_mebibyte() {
  return at::empty({kMebibyte}, at::kByte);
}

/// Jobs that cache CPU memory.
class CachedMemoryTest : public ::testing::Test {
 protected:
  CachedMemoryTest() { install_cpu_memory(); }

  static std::shared_ptr<MemoryOwner> caching_owner(const std::string& job = "caches",
                                                    std::int64_t limit = MemoryBudget::kUnlimited) {
    return std::make_shared<MemoryOwner>(std::make_shared<MemoryBudget>(job, limit), c10::DeviceType::CPU,
                                         MemoryOwner::Options{.meters = true, .caches = true});
  }
};

TEST_F(CachedMemoryTest, ABlockReturnsToTheCacheItCameFromWhicheverThreadFreesIt) {
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

TEST_F(CachedMemoryTest, CachedBlocksCountForNoBudgetAndStayInsideIt) {
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

TEST_F(CachedMemoryTest, AnOwnerThatDoesNotMeterCachesAndCountsNothing) {
  const auto budget = std::make_shared<MemoryBudget>("quiet", 4000);
  const auto mine = std::make_shared<MemoryOwner>(budget, c10::DeviceType::CPU,
                                                  MemoryOwner::Options{.meters = false, .caches = true});
  const MemoryScope scope(mine);
  const at::Tensor small = at::empty({1000});
  const at::Tensor large = a_mebibyte();
  EXPECT_EQ(budget->held(), 0);
  EXPECT_EQ(small.storage().data_ptr().get_deleter(), at::empty({0}).storage().data_ptr().get_deleter());
  EXPECT_TRUE(is_owners(large.storage().data_ptr().get_deleter()));
}

TEST_F(CachedMemoryTest, TensorsOutliveTheCacheTheyCameFrom) {
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

TEST_F(CachedMemoryTest, TrimsItsCacheWhenTheSystemIsShort) {
  const auto mine = caching_owner();
  const MemoryScope scope(mine);
  char* const large = static_cast<char*>(at::empty({100 * kMebibyte}, at::kByte).data_ptr());
  EXPECT_EQ(mine->budget()->peak_cached(), 100 * kMebibyte);
  unsigned char resident = 0;
  EXPECT_EQ(mincore(large + 50 * kMebibyte, 1, &resident), 0);
  shortage_count().report();
  a_mebibyte();
  EXPECT_NE(mincore(large + 50 * kMebibyte, 1, &resident), 0);
  void* const next = a_mebibyte().data_ptr();
  EXPECT_EQ(mincore(next, 1, &resident), 0) << "once for each shortage";
}

TEST_F(CachedMemoryTest, TheProcessHasACacheWhenAsked) {
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

TEST_F(CachedMemoryTest, TheProcessHasACacheUntilItsVeryEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // begins anew, so that the handler is registered first
  const auto run = [] {
    std::atexit([] {  // runs after the destructors of what is constructed later
      const MemoryOwner* const owner = memory_owner(c10::DeviceType::CPU);
      const bool lives = owner != nullptr && owner->budget().use_count() == 1 && owner->budget()->job() == "process";
      _exit(lives && a_mebibyte().numel() == kMebibyte ? 0 : 1);
    });
    cache_memory_of_process(true);
    a_mebibyte();
    std::exit(2);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

TEST_F(CachedMemoryTest, TensorsThatGrowMoveBetweenTheAllocators) {
  const auto mine = caching_owner();
  const MemoryScope scope(mine);
  at::Tensor tensor = at::ones({1000});
  tensor.resize_({1'000'000});
  EXPECT_EQ(tensor[999].item<float>(), 1.0F);
  tensor.set_();
  EXPECT_EQ(mine->budget()->held(), 0);
}

TEST_F(CachedMemoryTest, TenThreadsShareFourCaches) {
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

TEST_F(CachedMemoryTest, AForkedChildHasItsOwnCopyOfTheCache) {
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

}  // namespace
}  // namespace torchshare
