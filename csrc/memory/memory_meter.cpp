#include "memory/memory_meter.h"

#include <torch/csrc/profiler/orchestration/observer.h>

#include <algorithm>
#include <utility>

namespace torchshare {
namespace {

using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;
using torch::profiler::impl::ProfilerStateBase;

class Reporter final : public ProfilerStateBase {
 public:
  explicit Reporter(std::shared_ptr<MemoryMeter> meter)
      : ProfilerStateBase(ProfilerConfig(ProfilerState::Disabled, /*report_input_shapes=*/false,
                                         /*profile_memory=*/true)),
        meter_(std::move(meter)) {}

  ActiveProfilerType profilerType() override { return ActiveProfilerType::NONE; }
  void reportMemoryUsage(void* block, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    if (bytes > 0) {
      meter_->allocated(block, bytes);
    } else {
      meter_->released(block);
    }
  }

 private:
  const std::shared_ptr<MemoryMeter> meter_;
};

std::shared_ptr<c10::DebugInfoBase> make_reporter(std::shared_ptr<MemoryMeter> meter) {
  return meter == nullptr ? nullptr : std::make_shared<Reporter>(std::move(meter));
}

}  // namespace

std::int64_t MemoryMeter::held() const {
  std::lock_guard lock(mutex_);
  return held_;
}

std::int64_t MemoryMeter::peak() const {
  std::lock_guard lock(mutex_);
  return peak_;
}

void MemoryMeter::allocated(const void* block, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  std::int64_t& known = blocks_[block];
  held_ += bytes - std::exchange(known, bytes);  // where it was released unseen, outside the scope
  peak_ = std::max(peak_, held_);
}

void MemoryMeter::released(const void* block) {
  std::lock_guard lock(mutex_);
  if (const auto found = blocks_.find(block); found != blocks_.end()) {
    held_ -= found->second;
    blocks_.erase(found);
  }
}

// The guard does nothing for a null.
MemoryScope::MemoryScope(std::shared_ptr<MemoryMeter> meter)
    : guard_(c10::DebugInfoKind::PROFILER_STATE, make_reporter(std::move(meter))) {}

}  // namespace torchshare
