#include "device/cpu/cpu_device.h"

#include "device/cpu/idle_priority.h"

namespace torchshare {

CpuDevice::CpuDevice() {
  may_raise_priority();  // tried once here, not on a thread of idle priority
}

std::unique_ptr<ThreadPriority> CpuDevice::thread_priority(Priority priority) {
  return std::make_unique<IdlePriority>(priority != Priority::kPrimary);
}

}  // namespace torchshare
