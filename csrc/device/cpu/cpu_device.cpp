#include "device/cpu/cpu_device.h"

#include "device/cpu/low_priority.h"

namespace torchshare {

CpuDevice::CpuDevice() {
  may_raise_priority();  // tried once here, not on a thread of idle priority
}

std::unique_ptr<ThreadPriority> CpuDevice::thread_priority(Priority priority, DevicePriority how) {
  return std::make_unique<LowPriority>(priority == Priority::kPrimary ? DevicePriority::kNone : how);
}

}  // namespace torchshare
