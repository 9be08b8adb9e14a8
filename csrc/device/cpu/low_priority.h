#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <ctime>
#include <mutex>

#include "device/thread_priority.h"
#include "torchshare/values.h"

namespace torchshare {

/// A CPU thread's priority, as `how` says; see DevicePriority. OpenMP workers inherit it: `enter` starts them.
/// Measured beside two ordinary processes on two cores (benchmarks/priority.py): of what one job alone achieves there,
/// a secondary of idle priority achieves less than 0.01, one with a niceness of 10 0.15; the primary 1.42 and 1.27.
/// Workers, and the processes that they start, are found by the thread's name, which workers inherit. A `lent` thread,
/// which is not the job's own, may share its name with any other thread, and is named by its number until `leave`.
class LowPriority final : public ThreadPriority {
 public:
  explicit LowPriority(DevicePriority how, bool lent = false) : how_(how), lent_(lent && lowers()) {}
  void enter() override;
  void leave() override;
  void raise() override;
  void lower() override;
  void set_unopposed(bool unopposed) override;
  void raise_for_good() override;
  std::optional<std::chrono::nanoseconds> used() const override;
  std::optional<std::chrono::nanoseconds> waited() const noexcept override;

 private:
  bool lowers() const { return how_ != DevicePriority::kNone; }
  void change(int raises);
  bool apply(int thread);
  bool lower_thread(int thread) const;
  bool restore_thread(int thread) const;
  bool is_low(int thread) const;
  bool is_ordinary(int thread) const;
  void change_started(int thread, bool raise) const noexcept;

  std::atomic<DevicePriority> how_;  // `enter` replaces kAuto
  const bool lent_;
  std::atomic<int> raises_{0};  // above 0: ordinary priority
  std::atomic<int> thread_{0};  // the kernel's id; 0: not started
  // Written by `enter`, before `thread_`.
  int former_policy_ = SCHED_OTHER;
  int former_nice_ = 0;
  sched_param former_param_{};
  std::array<char, 16> former_name_{};
  clockid_t clock_{};
  std::mutex mutex_;  // held while another thread changes this one's priority, and while this one enters or leaves
};

/// True if this process may restore ordinary priority to a thread of low priority. Tested once.
bool may_raise_priority();

}  // namespace torchshare
