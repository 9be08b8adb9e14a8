#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "device/event_count.h"
#include "gate/device_waits.h"
#include "model/op_profile.h"
#include "model/time.h"
#include "torchshare/values.h"

namespace torchshare {

class RunAhead;

/// Reasons for a job to stop before an op, as bits.
enum Interrupt : std::uint32_t {
  kCancel = 1,     ///< raise at the next op
  kSuspend = 2,    ///< park at the next op
  kContended = 4,  ///< the policy must be asked before each op
  kHold = 8,       ///< wait at the next op until the coordinator releases the job
  kFilled = 16,    ///< does not stop the job: a lower job was admitted since its last op
  kRaised = 32,    ///< give back the ordinary priority that StallWatch lent the thread
  kFork = 64,      ///< wait at the next op until another job has forked the process
  kCounted = 128,  ///< for good, of a thread that is not the job's own: each op is counted
  kLeaves = 256,   ///< for good: serving threads stop, because the job is cancelled or has ended
};

/// One thread's state at the gate. `activity` is written by that thread only; `interrupts` by any thread. A job has one
/// slot for its own thread, and one for each thread that serves its requests meanwhile (see ServingThread).
///
/// Note [Free exit]
/// A job that leaves an op writes one counter and wakes nobody, which keeps the cost of sharing off the primary. A
/// waiting job reads the counter again after the grace period; if it has not changed, the job was quiet. Only before a
/// gap that is expected to be long enough to pay for it does a watched job publish when it left (`left_at`) and wake
/// the waiting jobs. It writes that while inside, so a reader that finds `activity` even and unchanged has read a
/// consistent value.
struct alignas(64) Slot {
  /// `own`: that of the job's own thread, unless this is it.
  explicit Slot(Priority p, const Slot* own = nullptr) : priority(p), job(own == nullptr ? this : own) {}

  const Priority priority;
  std::string_view name{};  ///< of the job, for messages
  const Slot* const job;    ///< the slot of the job's own thread, which is suspended and held for all
  std::atomic<std::uint32_t> interrupts{0};
  EventCount changed;                      ///< `interrupts`; see Gate::set
  std::atomic<bool> idle{false};           ///< the job waits for input
  std::atomic<std::uint64_t> requests{0};  ///< odd while it answers a request; half of it is the number of requests
  std::atomic<std::uint64_t> activity{0};  ///< odd while inside an op; half of it is the number of ops
  // Nanoseconds, written by the job's own thread; see OpWatch.
  std::atomic<std::int64_t> left_at{0};   ///< when the gap of `gap_mean` began
  std::atomic<std::int64_t> gap_mean{0};  ///< 0: the gap after the last op is unknown
  std::atomic<std::int64_t> gap_spread{0};
  // Of a periodic job; see UnitState.
  std::atomic<bool> is_periodic{false};
  std::atomic<std::int64_t> deadline{kNever.count()};
  std::atomic<std::int64_t> release{kNever.count()};
  std::atomic<std::int64_t> next_op{-1};       ///< expected duration of its next op; -1: unknown
  std::atomic<bool> is_guess{true};            ///< `next_op` is that of other ops, or unknown
  std::atomic<OpKind> kind{OpKind::kUnknown};  ///< of that op
  RunAhead* ahead = nullptr;                   ///< used by the job's own thread; null on a synchronous device
  DeviceWaits waits;                           ///< of the job, in its own slot

  void enter() { activity.store(activity.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  void leave() { enter(); }
  bool is_answering() const { return (requests.load(std::memory_order_acquire) & 1) != 0; }
  /// Called by one thread at a time.
  void set_answering(bool answers) {
    if (is_answering() != answers) {
      requests.store(requests.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
  }
  bool inside() const { return (activity.load(std::memory_order_acquire) & 1) != 0; }
  std::uint64_t ops() const { return activity.load(std::memory_order_relaxed) / 2; }
  /// With the one that it is inside.
  std::uint64_t ops_begun() const { return (activity.load(std::memory_order_acquire) + 1) / 2; }
};

}  // namespace torchshare
