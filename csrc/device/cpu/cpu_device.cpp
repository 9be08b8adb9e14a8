#include "device/cpu/cpu_device.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <sched.h>

#include <cstring>

namespace torchshare {
namespace {

/// SCHED_IDLE for one thread. Its OpenMP workers inherit it, because they are started later.
class IdleScope final : public DeviceScope {
 public:
  IdleScope() {
    int error = pthread_getschedparam(pthread_self(), &policy_, &former_);
    if (error == 0) {
      const sched_param idle{};
      error = pthread_setschedparam(pthread_self(), SCHED_IDLE, &idle);
    }
    if (error != 0) {
      TORCH_WARN("torchshare: cannot lower this thread to SCHED_IDLE (", std::strerror(error),
                 "); it keeps its priority");
    }
    lowered_ = error == 0;
  }

  ~IdleScope() override {
    // Raising a priority needs RLIMIT_NICE, which ordinary users have not; the thread ends with its job anyway.
    if (lowered_) {
      pthread_setschedparam(pthread_self(), policy_, &former_);
    }
  }

 private:
  int policy_ = SCHED_OTHER;
  sched_param former_{};
  bool lowered_ = false;
};

}  // namespace

void SteadyClock::wait_until(std::condition_variable& wake, std::unique_lock<std::mutex>& lock,
                             std::chrono::nanoseconds deadline) {
  if (deadline == kNever) {
    wake.wait(lock);
  } else {
    wake.wait_until(lock, std::chrono::steady_clock::time_point(deadline));
  }
}

std::unique_ptr<DeviceScope> CpuDevice::enter(const Seat& seat) {
  if (seat.priority == Priority::kPrimary) {
    return std::make_unique<DeviceScope>();
  }
  return std::make_unique<IdleScope>();
}

}  // namespace torchshare
