#include "device/device.h"

#include <fmt/format.h>

#include <charconv>
#include <stdexcept>

#include "device/cpu/cpu_device.h"
#include "device/cuda_status.h"
#include "device/marker_cost.h"
#ifdef TORCHSHARE_WITH_CUDA
#include "device/cuda/cuda_device.h"
#endif

namespace torchshare {
namespace {

std::shared_ptr<Device> make_cuda_device([[maybe_unused]] int index) {
#ifdef TORCHSHARE_WITH_CUDA
  return std::make_shared<CudaDevice>(index);
#else
  throw std::invalid_argument(fmt::format("device must be 'auto' or 'cpu' ({}), got 'cuda:{}'", cuda_status(), index));
#endif
}

std::shared_ptr<Device> make_default_cuda_device() {
#ifdef TORCHSHARE_WITH_CUDA
  return make_cuda_device(default_cuda_device());
#else
  return make_cuda_device(0);
#endif
}

}  // namespace

#ifndef TORCHSHARE_WITH_CUDA
MarkerCost measure_marker_cost(std::string_view, int) {
  throw std::invalid_argument(fmt::format("markers need a GPU ({})", cuda_status()));
}
#endif

std::shared_ptr<Device> make_device(std::string_view name) {
  constexpr std::string_view kCuda = "cuda";
  if (name == "cpu" || (name == "auto" && cuda_device_count() == 0)) {
    return std::make_shared<CpuDevice>();
  }
  if (name == "auto" || name == kCuda) {
    return make_default_cuda_device();
  }
  int index = 0;
  if (name.size() > kCuda.size() + 1 && name.starts_with(kCuda) && name[kCuda.size()] == ':') {
    const auto [end, error] = std::from_chars(name.data() + kCuda.size() + 1, name.data() + name.size(), index);
    if (error == std::errc() && end == name.data() + name.size()) {
      return make_cuda_device(index);
    }
  }
  throw std::invalid_argument(fmt::format("device must be 'auto', 'cpu', 'cuda' or 'cuda:<n>', got '{}'", name));
}

}  // namespace torchshare
