#include "memory/memory_meter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <optional>
#include <thread>

namespace torchshare {
namespace {

constexpr std::int64_t kBytes = 4000;

at::Tensor thousand_floats() {
  return at::empty({1000});
}

TEST(MemoryMeter, CountsWhatIsHeldAndTheMost) {
  const auto meter = std::make_shared<MemoryMeter>();
  const MemoryScope scope(meter);
  at::Tensor a = thousand_floats();
  at::Tensor b = thousand_floats();
  EXPECT_EQ(meter->held(), 2 * kBytes);
  a.reset();
  EXPECT_EQ(meter->held(), kBytes);
  b = thousand_floats();
  EXPECT_EQ(meter->peak(), 2 * kBytes);
}

TEST(MemoryMeter, CountsItsOwnThreadOnlyAndOnlyInsideTheScope) {
  const auto meter = std::make_shared<MemoryMeter>();
  {
    const MemoryScope scope(meter);
    std::thread([] { thousand_floats(); }).join();
  }
  thousand_floats();
  EXPECT_EQ(meter->peak(), 0);
}

TEST(MemoryMeter, LeavesOutWhatWasThereBefore) {
  std::optional<at::Tensor> before = thousand_floats();
  const auto meter = std::make_shared<MemoryMeter>();
  const MemoryScope scope(meter);
  before.reset();
  EXPECT_EQ(meter->held(), 0);
}

TEST(MemoryMeter, DoesNotCountTheReleaseOfAnothersBlocks) {
  at::Tensor garbage;
  {
    const MemoryScope scope(std::make_shared<MemoryMeter>());
    garbage = thousand_floats();
  }
  const auto meter = std::make_shared<MemoryMeter>();
  const MemoryScope scope(meter);
  garbage.reset();
  EXPECT_EQ(meter->held(), 0);
}

TEST(MemoryMeter, WithoutAMeterCountsNothingAndLeavesProfilingOff) {
  const MemoryScope none(nullptr);
  EXPECT_FALSE(c10::memoryProfilingEnabled());
  const MemoryScope some(std::make_shared<MemoryMeter>());
  EXPECT_TRUE(c10::memoryProfilingEnabled());
  EXPECT_FALSE(torch::profiler::impl::profilerEnabled());
}

}  // namespace
}  // namespace torchshare
