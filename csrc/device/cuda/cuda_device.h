#pragma once

#include <string>

#include "device/cpu/cpu_device.h"

namespace torchshare {

/// The GPU that "cuda" means: the calling thread's current one, as for torch; while that is the first, the one of
/// LOCAL_RANK, where a launcher such as torchrun has set it.
int default_cuda_device();

/// One GPU: each job launches into its own stream, whose CUDA priority follows the job's. Any thread.
class CudaDevice final : public Device {
 public:
  /// Throws std::invalid_argument if there is no such GPU, and as `check`.
  explicit CudaDevice(int index);
  std::string_view name() const override { return name_; }
  Clock& clock() override { return clock_; }
  bool is_asynchronous() const override { return true; }
  c10::Device memory() const override { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index_)}; }
  std::optional<std::int64_t> free_memory() const override;
  void install_memory() override;
  std::shared_ptr<DeviceEvent> record_event() override;
  std::unique_ptr<DeviceScope> enter(const DeviceRequest& request) override;
  void check() const override;

 private:
  const int index_;
  const std::string name_;
  SteadyClock clock_;
};

}  // namespace torchshare
