#pragma once

#include <sched.h>

#include <atomic>
#include <ctime>
#include <mutex>

#include "device/thread_priority.h"

namespace torchshare {

/// A CPU thread's priority: SCHED_IDLE if `lowers`, the counterpart of a low stream priority: the thread runs if no
/// other thread needs the core. OpenMP workers inherit it: `enter` starts them.
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
  std::atomic<int> thread_{0};  // the kernel's id; 0: not started
  // Written by `enter`, before `thread_`.
  int former_policy_ = SCHED_OTHER;
  sched_param former_param_{};
  clockid_t clock_{};
  std::mutex mutex_;  // held while another thread changes this one's priority, and while this one enters or leaves
};

/// True if this process may restore ordinary priority to a thread of idle priority. Tested once.
bool may_raise_priority();

}  // namespace torchshare
