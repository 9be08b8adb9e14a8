#include "device/device.h"

#include <fmt/format.h>

#include <stdexcept>

#include "device/cpu/cpu_device.h"

namespace torchshare {

std::shared_ptr<Device> make_device(std::string_view name) {
  if (name == "auto" || name == "cpu") {
    return std::make_shared<CpuDevice>();
  }
  throw std::invalid_argument(fmt::format("device '{}': expected 'auto' or 'cpu'", name));
}

}  // namespace torchshare
