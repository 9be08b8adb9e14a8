#include "memory/block_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "fakes/no_memory.h"

namespace torchshare {
namespace {

using std::chrono::seconds;
using ::testing::Each;
using ::testing::Le;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kHuge = 2 * kMiB;
constexpr std::size_t kSlack = 32 * kMiB;

class BlockCacheTest : public ::testing::Test {
 protected:
  char* allocate(std::size_t bytes) { return static_cast<char*>(cache_.allocate(bytes, now_)); }
  void free(char* block, std::size_t bytes) { cache_.free(block, bytes, now_); }
  /// Makes the extents that the sizes describe, which do not touch.
  std::vector<char*> free_apart(const std::vector<std::size_t>& sizes) {
    std::vector<char*> blocks;
    for (const std::size_t size : sizes) {
      blocks.push_back(allocate(size));
      walls_.push_back(allocate(kHuge));
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      free(blocks[i], sizes[i]);
    }
    return blocks;
  }
  bool is_mapped(char* address) {
    unsigned char resident = 0;
    return mincore(address, 1, &resident) == 0;
  }

  BlockCache::Time now_{seconds(1000)};
  BlockCache cache_;
  std::vector<char*> walls_;
};

class BlockSizeTest : public BlockCacheTest, public ::testing::WithParamInterface<std::size_t> {};

TEST_P(BlockSizeTest, IsAlignedWritableAndReused) {
  const std::size_t bytes = GetParam();
  char* const block = allocate(bytes);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 4096, 0u);
  std::memset(block, 1, bytes);
  EXPECT_EQ(cache_.in_use(), (bytes + 4095) / 4096 * 4096);
  free(block, bytes);
  EXPECT_EQ(cache_.in_use(), 0u);
  EXPECT_EQ(allocate(bytes), block);
  free(block, bytes);
}

INSTANTIATE_TEST_SUITE_P(Sizes, BlockSizeTest,
                         ::testing::Values(1, 4095, 4096, 4097, BlockCache::kSmallest, kHuge - 1, kHuge, kHuge + 1,
                                           32 * kMiB, 100 * kMiB + 12345));

TEST_F(BlockCacheTest, HasNoneForASizeThatNobodyHas) {
  EXPECT_EQ(allocate(SIZE_MAX), nullptr);
  EXPECT_EQ(allocate(std::size_t{1} << 60), nullptr);
  EXPECT_EQ(cache_.in_use(), 0u);
}

TEST_F(BlockCacheTest, SplitsAnExtentAndMergesItAgain) {
  char* const whole = allocate(8 * kMiB);
  free(whole, 8 * kMiB);
  char* const left = allocate(3 * kMiB);
  char* const right = allocate(5 * kMiB);
  EXPECT_EQ(left, whole);
  EXPECT_EQ(right, whole + 3 * kMiB);
  EXPECT_EQ(cache_.cached(), 0u);
  free(left, 3 * kMiB);
  free(right, 5 * kMiB);
  EXPECT_EQ(allocate(8 * kMiB), whole);
  free(whole, 8 * kMiB);
}

TEST_F(BlockCacheTest, TakesTheSmallestExtentThatFits) {
  const auto extents = free_apart({8 * kMiB, 4 * kMiB, 6 * kMiB});
  EXPECT_EQ(allocate(5 * kMiB), extents[2]);
  EXPECT_EQ(allocate(4 * kMiB), extents[1]);
  EXPECT_EQ(allocate(7 * kMiB), extents[0]);
}

TEST_F(BlockCacheTest, TrimsTheLeastRecentlyFreedFirst) {
  const auto extents = free_apart({4 * kMiB, 4 * kMiB, 4 * kMiB});
  cache_.trim(8 * kMiB);
  EXPECT_FALSE(is_mapped(extents[0]));
  EXPECT_TRUE(is_mapped(extents[1]));
  cache_.trim(6 * kMiB);
  EXPECT_TRUE(is_mapped(extents[1])) << "an extent is cut where a part of it is enough";
  EXPECT_FALSE(is_mapped(extents[1] + 3 * kMiB));
  cache_.trim(0);
  EXPECT_EQ(cache_.cached(), 0u);
  EXPECT_FALSE(is_mapped(extents[2]));
}

TEST_F(BlockCacheTest, MergedMemoryIsAsRecentAsItsLastPart) {
  free_apart({8 * kMiB});
  char* const left = allocate(4 * kMiB);
  char* const right = allocate(4 * kMiB);
  ASSERT_EQ(right, left + 4 * kMiB);
  char* const other = allocate(8 * kMiB);
  walls_.push_back(allocate(kHuge));
  free(left, 4 * kMiB);
  free(other, 8 * kMiB);
  free(right, 4 * kMiB);
  cache_.trim(8 * kMiB);
  EXPECT_TRUE(is_mapped(left));
  EXPECT_FALSE(is_mapped(other));
}

TEST_F(BlockCacheTest, KeepsThePeakAndASlack) {
  char* const large = allocate(800 * kMiB);
  char* const small = allocate(10 * kMiB);
  free(large, 800 * kMiB);
  EXPECT_EQ(cache_.cached(), 800 * kMiB) << "in use before: it may be needed again";
  std::vector<char*> blocks;
  for (int i = 0; i < 100; ++i) {
    blocks.push_back(allocate(8 * kMiB));
  }
  EXPECT_EQ(cache_.cached(), 0u);
  for (char* const block : blocks) {
    free(block, 8 * kMiB);
  }
  free(small, 10 * kMiB);
  EXPECT_EQ(cache_.cached(), 810 * kMiB);
  char* const other = allocate(900 * kMiB);  // fits in none: the others are in the way
  EXPECT_LE(cache_.in_use() + cache_.cached(), 900 * kMiB * 9 / 8);
  free(other, 900 * kMiB);
  EXPECT_LE(cache_.cached(), 900 * kMiB * 9 / 8);
}

TEST_F(BlockCacheTest, ForgetsAPeakAfterTwoWindows) {
  char* const small = allocate(kMiB);
  free(allocate(500 * kMiB), 500 * kMiB);
  now_ += seconds(11);
  free(allocate(kMiB), kMiB);
  EXPECT_GE(cache_.cached(), 500 * kMiB);
  now_ += seconds(11);
  free(allocate(kMiB), kMiB);
  EXPECT_LE(cache_.cached(), kSlack + 2 * kMiB);
  EXPECT_GT(cache_.cached(), 0u);
  free(small, kMiB);
}

TEST_F(BlockCacheTest, ForgetsAPeakAtOnceAfterALongPause) {
  free(allocate(500 * kMiB), 500 * kMiB);
  now_ += seconds(60);
  free(allocate(kMiB), kMiB);
  EXPECT_LE(cache_.cached(), kSlack + kMiB);
}

TEST_F(BlockCacheTest, StaysBelowItsCeiling) {
  cache_.reset(20 * kMiB);
  char* const mine = allocate(12 * kMiB);
  free_apart({4 * kMiB, 4 * kMiB});
  EXPECT_LE(cache_.in_use() + cache_.cached(), 20 * kMiB);
  char* const over = allocate(16 * kMiB);
  ASSERT_NE(over, nullptr) << "the ceiling bounds what is cached; the budget bounds what is in use";
  EXPECT_EQ(cache_.cached(), 0u);
  free(over, 16 * kMiB);
  free(mine, 12 * kMiB);
}

TEST_F(BlockCacheTest, ReturnsAllAtItsEnd) {
  char* block = nullptr;
  {
    BlockCache cache;
    block = static_cast<char*>(cache.allocate(kMiB, now_));
    cache.free(block, kMiB, now_);
    EXPECT_TRUE(is_mapped(block));
  }
  EXPECT_FALSE(is_mapped(block));
}

TEST_F(BlockCacheTest, GivesUpWhatItHasBeforeItHasNone) {
  const auto with_limit = [](std::size_t more, auto body) {
    rlimit former{};
    getrlimit(RLIMIT_AS, &former);
    std::size_t pages = 0;
    FILE* const statm = fopen("/proc/self/statm", "r");
    const int read = fscanf(statm, "%zu", &pages);
    fclose(statm);
    ASSERT_EQ(read, 1);
    const rlimit limit{pages * 4096 + more, former.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    body();
    setrlimit(RLIMIT_AS, &former);
  };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers map more than a limit allows";
#endif
  free_apart({40 * kMiB, 40 * kMiB});
  with_limit(20 * kMiB, [this] {
    char* const block = allocate(60 * kMiB);
    EXPECT_NE(block, nullptr);
    EXPECT_EQ(allocate(60 * kMiB), nullptr);
    free(block, 60 * kMiB);
    EXPECT_EQ(allocate(60 * kMiB), block);
    free(block, 60 * kMiB);
  });
}

TEST_F(BlockCacheTest, UnmapsWhatItHasNoMemoryToRemember) {
  for (int left = 0; left < 4; ++left) {
    char* const first = allocate(4 * kMiB);
    char* const wall = allocate(kHuge);
    news_left = left;
    free(first, 4 * kMiB);
    news_left = -1;
    EXPECT_EQ(is_mapped(first), left >= 2) << "two containers remember an extent";
    free(wall, kHuge);
    EXPECT_EQ(cache_.in_use(), 0u);
    cache_.trim(0);
    EXPECT_EQ(cache_.cached(), 0u);
  }
}

TEST_F(BlockCacheTest, WhatIsCachedIsPoisonedForAddressSanitizer) {
#ifndef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "without AddressSanitizer";
#else
  char* const block = allocate(kMiB);
  EXPECT_EQ(__asan_region_is_poisoned(block, kMiB), nullptr);
  free(block, kMiB);
  EXPECT_EQ(__asan_region_is_poisoned(block, kMiB), block);
  EXPECT_EQ(allocate(kMiB), block);
  EXPECT_EQ(__asan_region_is_poisoned(block, kMiB), nullptr);
  free(block, kMiB);
#endif
}

/// Random requests against a model: no two blocks overlap, none loses its contents, the sums are right.
TEST_F(BlockCacheTest, IsAnAllocatorWhateverIsAskedOfIt) {
  std::mt19937 random(1);
  std::map<char*, std::size_t> blocks;
  std::size_t in_use = 0;
  std::size_t most = 0;
  const auto fill = [](char* block, std::size_t bytes) {
    std::memset(block, static_cast<int>(bytes % 251), 64);
    std::memset(block + bytes - 64, static_cast<int>(bytes % 251), 64);
  };
  const auto check = [](const char* block, std::size_t bytes) {
    EXPECT_EQ(block[0], static_cast<char>(bytes % 251));
    EXPECT_EQ(block[bytes - 1], static_cast<char>(bytes % 251));
  };
  for (int i = 0; i < 20'000; ++i) {
    now_ += std::chrono::milliseconds(random() % 10);
    const bool allocates = blocks.empty() || (blocks.size() < 60 && random() % 2 == 0);
    if (allocates) {
      const std::size_t bytes = BlockCache::kSmallest + random() % (random() % 10 == 0 ? 32 * kMiB : kMiB);
      char* const block = allocate(bytes);
      ASSERT_NE(block, nullptr);
      const auto next = blocks.lower_bound(block);
      ASSERT_TRUE(next == blocks.end() || block + bytes <= next->first);
      ASSERT_TRUE(next == blocks.begin() || std::prev(next)->first + std::prev(next)->second <= block);
      fill(block, bytes);
      blocks.emplace(block, bytes);
      in_use += (bytes + 4095) / 4096 * 4096;
    } else {
      const auto victim = std::next(blocks.begin(), static_cast<std::ptrdiff_t>(random() % blocks.size()));
      check(victim->first, victim->second);
      free(victim->first, victim->second);
      in_use -= (victim->second + 4095) / 4096 * 4096;
      blocks.erase(victim);
    }
    if (random() % 500 == 0) {
      cache_.trim(random() % (64 * kMiB));
    }
    most = std::max(most, in_use);
    ASSERT_EQ(cache_.in_use(), in_use);
    ASSERT_LE(in_use + cache_.cached(), most + std::max(most / 8, kSlack));
  }
  for (const auto& [block, bytes] : blocks) {
    check(block, bytes);
    free(block, bytes);
  }
  cache_.trim(0);
  EXPECT_EQ(cache_.cached(), 0u);
}

}  // namespace
}  // namespace torchshare
