#include "memory/memory_meter.h"

#include <torch/csrc/profiler/orchestration/observer.h>

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
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    meter_->add(bytes);
  }

 private:
  const std::shared_ptr<MemoryMeter> meter_;
};

std::shared_ptr<c10::DebugInfoBase> make_reporter(std::shared_ptr<MemoryMeter> meter) {
  return meter == nullptr ? nullptr : std::make_shared<Reporter>(std::move(meter));
}

}  // namespace

void MemoryMeter::add(std::int64_t bytes) {
  const std::int64_t held = held_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::int64_t peak = peak_.load(std::memory_order_relaxed);
  while (held > peak && !peak_.compare_exchange_weak(peak, held, std::memory_order_relaxed)) {
  }
}

// The guard does nothing for a null.
MemoryScope::MemoryScope(std::shared_ptr<MemoryMeter> meter)
    : guard_(c10::DebugInfoKind::PROFILER_STATE, make_reporter(std::move(meter))) {}

}  // namespace torchshare
