#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <optional>

#include "device/clock.h"
#include "device/thread_priority.h"
#include "gate/slot.h"

namespace torchshare {

/// Checks every few milliseconds for a lower job that may hold a lock that a higher job waits for: both are between two
/// ops, and neither has used the processor since the last check. Raises the lower job's thread until its next op, or
/// until the higher job makes progress. See Note [Priority inversion]. Also gives ordinary priority to jobs while none
/// runs that outranks them. Any thread.
class StallWatch {
 public:
  explicit StallWatch(Clock& clock) : clock_(clock) {}
  StallWatch(const StallWatch&) = delete;  // members point at it
  StallWatch& operator=(const StallWatch&) = delete;

  /// Watches a job until the destructor; `slot` and `priority` must outlive it.
  class Member {
   public:
    Member(StallWatch& watch, Slot& slot, ThreadPriority& priority);
    ~Member();
    Member(const Member&) = delete;  // the watch points at it
    Member& operator=(const Member&) = delete;

   private:
    friend class StallWatch;
    bool stands_still();

    StallWatch& watch_;
    Slot& slot_;
    ThreadPriority& priority_;
    std::uint64_t activity_ = 0;                      // at the last check
    std::optional<std::chrono::nanoseconds> used_{};  // processor time, at the last check
    bool is_still_ = false;
    bool is_unopposed_ = false;
  };

  /// Checks until `dismiss`. On its own thread of ordinary priority.
  void serve();
  void dismiss();
  /// Checks once.
  void look();
  /// Tells the priorities which jobs have no higher one beside them.
  void update_unopposed();

 private:
  bool has_pair();

  Clock& clock_;
  EventCount changed_;  // members_ or dismissed_
  std::atomic<bool> dismissed_{false};
  std::mutex mutex_;  // guards members_ and what `look` keeps in them
  std::list<Member*> members_;
};

/// On the job's own thread, before an op: gives back the priority that StallWatch lent it.
void lower_again(Slot& slot, ThreadPriority& priority);

}  // namespace torchshare
