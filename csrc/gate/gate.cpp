#include "gate/gate.h"

#include <algorithm>
#include <utility>

namespace torchshare {
namespace {

bool has(const Slot& slot, std::uint32_t bits) {
  return (slot.attention.load(std::memory_order_acquire) & bits) != 0;
}

}  // namespace

Gate::Gate(std::unique_ptr<GatePolicy> policy, Clock& clock) : policy_(std::move(policy)), clock_(clock) {}

void Gate::add(Slot& slot) {
  std::lock_guard lock(mutex_);
  members_.push_back({&slot, slot.activity.load(std::memory_order_acquire), clock_.now()});
  refresh_contention();
}

void Gate::remove(Slot& slot) {
  {
    std::lock_guard lock(mutex_);
    std::erase_if(members_, [&](const Member& member) { return member.slot == &slot; });
    refresh_contention();
  }
  changed_.notify_all();
}

void Gate::refresh_contention() {
  for (const Member& member : members_) {
    const bool contended = std::any_of(members_.begin(), members_.end(),
                                       [&](const Member& other) {
                                         return other.slot != member.slot &&
                                                policy_->concerns(member.slot->priority, other.slot->priority);
                                       }) ||
                           is_paced(*member.slot);
    if (contended) {
      member.slot->attention.fetch_or(kContended, std::memory_order_release);
    } else {
      member.slot->attention.fetch_and(~kContended, std::memory_order_release);
    }
  }
}

bool Gate::is_paced(const Slot& slot) const {
  return pace_.share < 1 && std::any_of(members_.begin(), members_.end(), [&](const Member& other) {
           return outranks(other.slot->priority, slot.priority);
         });
}

void Gate::set_pace(const Pace& pace) {
  {
    std::lock_guard lock(mutex_);
    pace_ = pace;
    refresh_contention();
  }
  changed_.notify_all();
}

void Gate::set(Slot& slot, Attention bit) {
  {
    // Under the lock, so that no waiter can have tested the bit and not yet be waiting.
    std::lock_guard lock(mutex_);
    slot.attention.fetch_or(bit, std::memory_order_release);
  }
  changed_.notify_all();
}

void Gate::clear(Slot& slot, Attention bit) {
  {
    std::lock_guard lock(mutex_);
    slot.attention.fetch_and(~bit, std::memory_order_release);
  }
  changed_.notify_all();
}

void Gate::set_idle(Slot& slot, bool idle) {
  {
    std::lock_guard lock(mutex_);
    slot.idle.store(idle, std::memory_order_release);
  }
  if (idle) {
    changed_.notify_all();
  }
}

Verdict Gate::ask(const Slot& slot, std::chrono::nanoseconds now) {
  std::vector<Rival> rivals;
  for (Member& member : members_) {
    if (member.slot == &slot || !policy_->concerns(slot.priority, member.slot->priority)) {
      continue;
    }
    const std::uint64_t activity = member.slot->activity.load(std::memory_order_acquire);
    if (activity != member.activity) {
      member.activity = activity;
      member.seen_since = now;
    }
    rivals.push_back({.inside = (activity & 1) != 0,
                      .idle = member.slot->idle.load(std::memory_order_acquire),
                      .quiet = now - member.seen_since});
  }
  const Verdict verdict = policy_->decide(rivals);
  if (!verdict.admit || !is_paced(slot)) {
    return verdict;
  }
  const auto wait = pace_.wait(now);
  return {.admit = wait.count() == 0, .retry_after = wait};
}

bool Gate::try_enter(const Slot& slot) {
  std::lock_guard lock(mutex_);
  return ask(slot, clock_.now()).admit;
}

bool Gate::wait_turn(const Slot& slot) {
  std::unique_lock lock(mutex_);
  while (!has(slot, kCancel | kSuspend | kHold)) {
    const auto now = clock_.now();
    const Verdict verdict = ask(slot, now);
    if (verdict.admit) {
      return true;
    }
    clock_.wait_until(changed_, lock, now + verdict.retry_after);
  }
  return false;
}

void Gate::wait_resumed(const Slot& slot) {
  std::unique_lock lock(mutex_);
  while (has(slot, kSuspend) && !has(slot, kCancel)) {
    clock_.wait_until(changed_, lock, kNever);
  }
}

void Gate::sleep(const Slot& slot, std::chrono::nanoseconds duration) {
  std::unique_lock lock(mutex_);
  const auto now = clock_.now();
  const auto deadline = duration < kNever - now ? now + duration : kNever;
  while (!has(slot, kCancel) && clock_.now() < deadline) {
    clock_.wait_until(changed_, lock, deadline);
  }
}

}  // namespace torchshare
