#include "runtime/stall_watch.h"

#include <algorithm>
#include <utility>

namespace torchshare {
namespace {

constexpr std::chrono::nanoseconds kLookEvery = std::chrono::milliseconds(4);

}  // namespace

/// The kRaised bit says that the thread was raised; the caller that clears it lowers the thread.
void lower_again(Slot& slot, ThreadPriority& priority) {
  if ((slot.interrupts.fetch_and(~kRaised, std::memory_order_acq_rel) & kRaised) != 0) {
    priority.lower();
  }
}

StallWatch::Member::Member(StallWatch& watch, Slot& slot, ThreadPriority& priority)
    : watch_(watch), slot_(slot), priority_(priority) {
  {
    std::lock_guard lock(watch_.mutex_);
    watch_.members_.push_back(this);
  }
  watch_.changed_.notify_all();
}

StallWatch::Member::~Member() {
  {
    std::lock_guard lock(watch_.mutex_);
    watch_.members_.remove(this);
  }
  lower_again(slot_, priority_);
  watch_.changed_.notify_all();
}

/// True if the job, outside ops, has used no processor time since the last check; false if that is unknown.
bool StallWatch::Member::stands_still() {
  const std::uint64_t activity = slot_.activity.load(std::memory_order_acquire);
  const auto used = priority_.used();
  const bool outside = (activity & 1) == 0;
  const bool waits = (slot_.interrupts.load(std::memory_order_relaxed) & (kSuspend | kHold)) != 0;
  const bool moved = std::exchange(activity_, activity) != activity;
  const bool ran = std::exchange(used_, used) != used || !used;
  return outside && !waits && !moved && !ran;
}

void StallWatch::look() {
  std::lock_guard lock(mutex_);
  for (Member* const member : members_) {
    member->is_still_ = member->stands_still();
  }
  for (Member* const lower : members_) {
    const bool blocks = std::any_of(members_.begin(), members_.end(), [&](const Member* higher) {
      return higher->is_still_ && outranks(higher->slot_.priority, lower->slot_.priority);
    });
    const bool raised = (lower->slot_.interrupts.load(std::memory_order_relaxed) & kRaised) != 0;
    if (!blocks) {
      lower_again(lower->slot_, lower->priority_);
    } else if (lower->is_still_ && !raised) {
      lower->priority_.raise();
      lower->slot_.interrupts.fetch_or(kRaised, std::memory_order_acq_rel);
    }
  }
}

bool StallWatch::has_pair() {
  std::lock_guard lock(mutex_);
  return std::any_of(members_.begin(), members_.end(), [this](const Member* member) {
    return outranks(members_.front()->slot_.priority, member->slot_.priority) ||
           outranks(member->slot_.priority, members_.front()->slot_.priority);
  });
}

void StallWatch::update_unopposed() {
  std::lock_guard lock(mutex_);
  for (Member* const member : members_) {
    const bool unopposed = std::none_of(members_.begin(), members_.end(), [&](const Member* other) {
      return outranks(other->slot_.priority, member->slot_.priority);
    });
    if (std::exchange(member->is_unopposed_, unopposed) != unopposed) {
      member->priority_.set_unopposed(unopposed);
    }
  }
}

void StallWatch::serve() {
  std::optional<std::uint32_t> known;
  while (!dismissed_.load()) {
    const std::uint32_t seen = changed_.value();
    if (known != seen) {
      update_unopposed();
      known = seen;
    }
    const bool looks = has_pair();
    if (looks) {
      look();
    }
    if (!dismissed_.load()) {
      clock_.wait(changed_, seen, looks ? clock_.now() + kLookEvery : kNever);
    }
  }
}

void StallWatch::dismiss() {
  dismissed_.store(true);
  changed_.notify_all();
}

}  // namespace torchshare
