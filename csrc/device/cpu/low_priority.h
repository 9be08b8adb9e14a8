#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <ctime>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "device/thread_priority.h"
#include "torchshare/values.h"

namespace torchshare {

/// A CPU thread's priority, as `how` says; see DevicePriority. OpenMP workers inherit it: `enter` starts them.
/// Measured beside two ordinary processes on two cores (benchmarks/priority.py): of what one job alone achieves there,
/// a secondary of idle priority achieves less than 0.01, one with a niceness of 10 0.15; the primary 1.42 and 1.27.
/// What the thread starts, threads and processes, is found by the thread's name, which it inherits. A `lent` thread,
/// which is not the job's own, may share its name with any other thread: it is named by its number until `leave`, which
/// gives what it has started ordinary priority. It may have had OpenMP workers before, which are found by their
/// numbers.
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
  void raise_with_started(int raises);
  bool apply(int thread);
  bool lower_thread(int thread) const;
  bool restore_thread(int thread) const;
  bool is_low(int thread) const;
  bool is_ordinary(int thread) const;
  void change_one(int thread, bool raise) const;
  void change_started(int thread, bool raise) const noexcept;
  void lend();
  void take_back();

  std::atomic<DevicePriority> how_;  // `enter` replaces kAuto
  const bool lent_;
  std::atomic<int> raises_{0};  // above 0: ordinary priority
  std::atomic<int> thread_{0};  // the kernel's id; 0: not started
  // Written by `enter`, before `thread_`.
  int former_policy_ = SCHED_OTHER;
  int former_nice_ = 0;
  sched_param former_param_{};
  std::array<char, 16> former_name_{};
  std::vector<int> workers_{};       // of a lent thread; empty otherwise
  std::set<std::string> threads_{};  // of the process, when the thread was lent
  clockid_t clock_{};
  std::mutex mutex_;  // held while another thread changes this one's priority, and while this one enters or leaves
};

/// True if this process may restore ordinary priority to a thread of low priority. Tested once.
bool may_raise_priority();

}  // namespace torchshare
