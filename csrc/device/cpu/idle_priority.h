#pragma once

#include <sched.h>

#include <atomic>
#include <ctime>
#include <mutex>

#include "device/thread_priority.h"

namespace torchshare {

/// A thread of the CPU: SCHED_IDLE where `lowers`, which to the CPU is what stream priority is to the GPU: it runs on
/// what the others leave. OpenMP workers inherit it: `enter` has them made.
class IdlePriority final : public ThreadPriority {
 public:
  explicit IdlePriority(bool lowers) : lowers_(lowers) {}
  void enter() override;
  void leave() override;
  void raise() override;
  void lower() override;
  void raise_for_good() override;
  std::optional<std::chrono::nanoseconds> used() const override;

 private:
  void change(int raises);
  bool apply(int thread);

  const bool lowers_;
  std::atomic<int> raises_{0};  // above 0: ordinary priority
  std::atomic<int> thread_{0};  // the kernel's name for it; 0: not there
  // Written by `enter`, before `thread_`.
  int former_policy_ = SCHED_OTHER;
  sched_param former_param_{};
  clockid_t clock_{};
  std::mutex mutex_;  // held by others while they reach for the thread, and by the thread when it comes and goes
};

/// Whether this process may give a thread of idle priority ordinary priority again. Tried once.
bool may_raise_priority();

}  // namespace torchshare
