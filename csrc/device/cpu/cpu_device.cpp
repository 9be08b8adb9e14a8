#include "device/cpu/cpu_device.h"

#include "device/cpu/low_priority.h"

namespace torchshare {
namespace {

DevicePriority lowered(Priority priority, DevicePriority how) {
  return priority == Priority::kPrimary ? DevicePriority::kNone : how;
}

}  // namespace

CpuDevice::CpuDevice() {
  may_raise_priority();  // tried once here, not on a thread of idle priority
}

std::unique_ptr<ThreadPriority> CpuDevice::thread_priority(Priority priority, DevicePriority how) {
  return std::make_unique<LowPriority>(lowered(priority, how));
}

std::unique_ptr<ThreadPriority> CpuDevice::lent_thread_priority(Priority priority, DevicePriority how) {
  return std::make_unique<LowPriority>(may_raise_priority() ? lowered(priority, how) : DevicePriority::kNone, true);
}

}  // namespace torchshare
