#pragma once

#include <string>

#include "device/cpu/cpu_device.h"

namespace torchshare {

/// One GPU: each job launches into its own stream, whose CUDA priority follows the job's. Any thread.
class CudaDevice final : public Device {
 public:
  /// Throws std::invalid_argument if there is no such GPU, and as `check`.
  explicit CudaDevice(int index);
  std::string_view name() const override { return name_; }
  Clock& clock() override { return clock_; }
  bool is_asynchronous() const override { return true; }
  c10::DeviceType memory_type() const override { return c10::DeviceType::CUDA; }
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
