#include "device/cuda_stand_in.h"

#include <c10/core/impl/FakeGuardImpl.h>

namespace torchshare {

void keep_cuda_stand_in() {
  using c10::DeviceType;
  const auto* const guard = c10::impl::device_guard_impl_registry[static_cast<std::size_t>(DeviceType::CUDA)].load();
  if (guard != nullptr && guard->deviceCount() == 0) {
    static const auto* const stand_in = new c10::impl::FakeGuardImpl<DeviceType::CUDA>;
    static const c10::impl::DeviceGuardImplRegistrar registrar(DeviceType::CUDA, stand_in);
  }
}

}  // namespace torchshare
