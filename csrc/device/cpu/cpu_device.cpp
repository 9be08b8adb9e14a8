#include "device/cpu/cpu_device.h"

#include "device/cpu/low_priority.h"

namespace torchshare {

CpuDevice::CpuDevice() {
  may_raise_priority();  // tried once here, not on a thread of idle priority
}

std::unique_ptr<ThreadPriority> CpuDevice::thread_priority(Priority priority, DevicePriority how) {
  return std::make_unique<LowPriority>(priority == Priority::kPrimary ? DevicePriority::kNone : how);
}

std::unique_ptr<ThreadPriority> CpuDevice::lent_thread_priority(Priority priority, DevicePriority how) {
  const bool stays = priority == Priority::kPrimary || !may_raise_priority();
  return std::make_unique<LowPriority>(stays ? DevicePriority::kNone : how, true);
}

}  // namespace torchshare
