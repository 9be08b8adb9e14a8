#include "memory/system_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace torchshare {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

class SystemMemoryTest : public ::testing::Test {
 protected:
  SystemMemoryTest() : root_(fs::temp_directory_path() / ("torchshare-memory-" + std::to_string(getpid()))) {
    write("proc/meminfo", "MemTotal:  8388608 kB\nMemFree:  1 kB\nMemAvailable:   4194304 kB\n");
  }
  ~SystemMemoryTest() override { fs::remove_all(root_); }

  void write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  void write_group(const std::string& group, const std::string& limit, std::int64_t used, std::int64_t cache = 0) {
    write("sys/fs/cgroup/" + group + "/memory.max", limit + "\n");
    write("sys/fs/cgroup/" + group + "/memory.current", std::to_string(used));
    write("sys/fs/cgroup/" + group + "/memory.stat", "anon 1\ninactive_file " + std::to_string(cache) + "\n");
  }

  const fs::path root_;
};

TEST_F(SystemMemoryTest, ReadsTheMachines) {
  const auto memory = system_memory(root_);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->total, 8 * kGiB);
  EXPECT_EQ(memory->available, 4 * kGiB);
}

TEST_F(SystemMemoryTest, AControlGroupMayHaveLess) {
  write("proc/self/cgroup", "1:name=systemd:/\n0::/outer/inner\n");
  write_group("outer/inner", "max", 5 * kGiB);
  EXPECT_EQ(system_memory(root_)->available, 4 * kGiB);
  write_group("outer", std::to_string(6 * kGiB), 5 * kGiB, kGiB);
  EXPECT_EQ(system_memory(root_)->total, 6 * kGiB);
  EXPECT_EQ(system_memory(root_)->available, 2 * kGiB) << "the cache of files is reclaimed first";
  write_group("", std::to_string(kGiB), 2 * kGiB);  // a container sees its own group at the root
  EXPECT_EQ(system_memory(root_)->available, 0);
}

TEST_F(SystemMemoryTest, IsUnknownWithoutTheFiles) {
  write("proc/meminfo", "nonsense");
  EXPECT_FALSE(system_memory(root_));
  EXPECT_FALSE(system_memory(root_ / "missing"));
}

TEST_F(SystemMemoryTest, IsKnownOnThisMachine) {
  const auto memory = system_memory();
  ASSERT_TRUE(memory);
  EXPECT_GT(memory->available, 0);
  EXPECT_LT(memory->available, memory->total);
}

TEST_F(SystemMemoryTest, IsShortBelowATwentieth) {
  EXPECT_FALSE((SystemMemory{.total = 100, .available = 5}.is_short()));
  EXPECT_TRUE((SystemMemory{.total = 100, .available = 4}.is_short()));
}

TEST_F(SystemMemoryTest, CountsShortagesAtMostTenTimesASecond) {
  ShortageCount count(root_);
  std::chrono::steady_clock::time_point now{std::chrono::seconds(100)};
  EXPECT_EQ(count.look(now), 0u);
  write("proc/meminfo", "MemTotal:  8388608 kB\nMemAvailable:   4194 kB\n");
  EXPECT_EQ(count.look(now), 0u);
  now += std::chrono::milliseconds(100);
  EXPECT_EQ(count.look(now), 1u);
  EXPECT_EQ(count.look(now), 1u);
  now += std::chrono::milliseconds(100);
  EXPECT_EQ(count.look(now), 2u);
}

}  // namespace
}  // namespace torchshare
