#include "device/device.h"

#include <fmt/format.h>

#include <stdexcept>

#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_status.h"

namespace torchshare {

std::shared_ptr<Device> make_device(std::string_view name) {
  if (name == "auto" || name == "cpu") {
    return std::make_shared<CpuDevice>();
  }
  if (name == "cuda") {
    throw std::invalid_argument(
        fmt::format("device 'cuda': jobs run on the CPU only in this version ({})", cuda_status()));
  }
  throw std::invalid_argument(fmt::format("device '{}': expected 'auto' or 'cpu'", name));
}

}  // namespace torchshare
