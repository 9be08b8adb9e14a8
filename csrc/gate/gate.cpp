#include "gate/gate.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "gate/run_ahead.h"

namespace torchshare {
namespace {

// A device sends no notification when it finishes. A poll reads one word of memory.
constexpr std::chrono::nanoseconds kPoll = std::chrono::microseconds(20);
// How often a job that waits asks its device for an error, which costs a call of the driver.
constexpr std::chrono::nanoseconds kCheck = std::chrono::milliseconds(10);

bool has(const Slot& slot, std::uint32_t bits) {
  return (slot.interrupts.load(std::memory_order_acquire) & bits) != 0;
}

Standing standing(const Slot& slot) {
  return {slot.priority, slot.job->is_periodic.load(std::memory_order_relaxed)};
}

std::optional<std::chrono::nanoseconds> expected_op(const Slot& slot) {
  const std::chrono::nanoseconds expected(slot.next_op.load(std::memory_order_relaxed));
  return expected.count() >= 0 ? std::optional(expected) : std::nullopt;
}

}  // namespace

Gate::Gate(std::unique_ptr<GatePolicy> policy, Clock& clock) : policy_(std::move(policy)), clock_(clock) {}

void Gate::add(Slot& slot, std::shared_ptr<DeviceStream> stream) {
  std::lock_guard lock(mutex_);
  members_.push_back({.slot = &slot,
                      .number = added_++,
                      .record = {.quiet = {2 * (slot.activity + slot.requests), clock_.now()}},
                      .stream = std::move(stream)});
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
                                         return other.slot->job != member.slot->job &&
                                                policy_->concerns(standing(*member.slot), standing(*other.slot));
                                       }) ||
                           is_paced(*member.slot);
    if (contended) {
      member.slot->interrupts.fetch_or(kContended, std::memory_order_release);
    } else {
      member.slot->interrupts.fetch_and(~kContended, std::memory_order_release);
    }
  }
}

bool Gate::is_paced(const Slot& slot) const {
  return pace_.share < 1 && std::any_of(members_.begin(), members_.end(), [&](const Member& other) {
           return outranks(other.slot->priority, slot.priority);
         });
}

void Gate::set_periodic(Slot& slot, bool is_periodic) {
  {
    std::lock_guard lock(mutex_);
    slot.is_periodic.store(is_periodic);
    refresh_contention();
  }
  changed_.notify_all();
}

void Gate::end_unit(Slot& slot, std::chrono::nanoseconds took, std::chrono::nanoseconds release) {
  units_.fetch_add(took.count());
  slot.release.store(release.count(), std::memory_order_release);
  slot.deadline.store(kNever.count(), std::memory_order_release);
  changed_.notify_all();
}

void Gate::begin_unit(Slot& slot, std::chrono::nanoseconds deadline) {
  slot.deadline.store(deadline.count(), std::memory_order_release);
  slot.release.store(kNever.count(), std::memory_order_release);
}

void Gate::set_blocking_allowed(std::chrono::nanoseconds time) {
  {
    std::lock_guard lock(mutex_);
    blocking_allowed_ = time;
  }
  changed_.notify_all();
}

std::vector<std::string> Gate::others_inside(const Slot& slot) const {
  std::vector<std::string> found;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    return found;
  }
  for (const Member& member : members_) {
    if (member.slot->job != slot.job && snapshot(member).inside) {
      found.emplace_back(member.slot->job->name);
    }
  }
  return found;
}

void Gate::set_pace(const Pace& pace) {
  {
    std::lock_guard lock(mutex_);
    pace_ = pace;
    refresh_contention();
  }
  changed_.notify_all();
}

Pace Gate::pace() const {
  std::lock_guard lock(mutex_);
  return pace_;
}

void Gate::set(Slot& slot, Interrupt bit) {
  slot.interrupts.fetch_or(bit, std::memory_order_release);
  slot.changed.notify_all();
  changed_.notify_all();
}

void Gate::clear(Slot& slot, Interrupt bit) {
  slot.interrupts.fetch_and(~bit, std::memory_order_release);
  slot.changed.notify_all();
  changed_.notify_all();
}

void Gate::set_idle(Slot& slot, bool idle) {
  slot.idle.store(idle, std::memory_order_release);
  if (idle) {
    changed_.notify_all();
  }
}

void Gate::gap_opened() {
  changed_.notify_all();
}

Gate::Member& Gate::member_of(const Slot& slot) {
  return *std::find_if(members_.begin(), members_.end(), [&](const Member& member) { return member.slot == &slot; });
}

std::optional<DeviceWait> Gate::wait_of(const Member& member) const {
  auto wait = member.stream != nullptr ? member.slot->job->waits.current(*member.stream) : std::nullopt;
  if (wait && wait->stream != member.stream->handle()) {
    wait.reset();  // the job may go on launching on its own stream
  }
  return wait;
}

/// With the release by which others must have left the device.
UnitState Gate::unit(const Slot& job) const {
  std::chrono::nanoseconds deadline(job.deadline.load(std::memory_order_acquire));
  const std::chrono::nanoseconds release(job.release.load(std::memory_order_acquire));
  if (deadline == kNever) {  // read again: a unit may have begun before the release was read
    deadline = std::chrono::nanoseconds(job.deadline.load(std::memory_order_acquire));
  }
  return {deadline, release < kNever - blocking_allowed_ ? release + blocking_allowed_ : kNever};
}

JobSnapshot Gate::snapshot(const Member& member) const {
  const Slot& slot = *member.slot;
  if (const auto wait = wait_of(member)) {  // an op that the thread is in is launched behind the wait
    return {
        .activity = ~wait->number, .idle = true, .gap = wait->forecast, .unit = unit(*slot.job), .job = member.number};
  }
  const std::uint64_t activity = slot.activity.load(std::memory_order_acquire);
  const bool working = member.stream != nullptr && !member.seems_done(activity);
  const std::uint64_t requests = slot.requests.load(std::memory_order_acquire);
  JobSnapshot seen{.activity = 2 * (activity + requests) + (working ? 1 : 0),
                   .inside = (activity & 1) != 0 || working,
                   .idle = slot.idle.load(std::memory_order_acquire),
                   .answering = (requests & 1) != 0,
                   .unit = unit(*slot.job),
                   .job = member.number};
  if (policy_->forecasts()) {
    const std::chrono::nanoseconds left_at(slot.left_at.load(std::memory_order_acquire));
    const GapForecast gap{std::chrono::nanoseconds(slot.gap_mean.load(std::memory_order_acquire)),
                          std::chrono::nanoseconds(slot.gap_spread.load(std::memory_order_acquire))};
    if (slot.activity.load(std::memory_order_relaxed) == activity) {
      seen.gap = gap;
      seen.left_at = member.stream == nullptr ? std::optional(left_at) : std::nullopt;
    }
    seen.kind = slot.kind.load(std::memory_order_relaxed);
    seen.op = expected_op(slot);
  }
  return seen;
}

Verdict Gate::ask(const Slot& slot, std::chrono::nanoseconds now, std::chrono::nanoseconds waited) {
  Admission admission(*policy_, standing(slot), now, std::chrono::nanoseconds(units_.load()));
  for (Member& member : members_) {
    if (member.slot->job != slot.job && admission.regards(standing(*member.slot))) {
      admission.add(standing(*member.slot), member.record, snapshot(member));
    }
  }
  const Member& self = member_of(slot);
  return admission.decide(self.record,
                          {.op = expected_op(slot),
                           .is_guess = slot.is_guess.load(std::memory_order_relaxed),
                           .kind = slot.kind.load(std::memory_order_relaxed),
                           .ahead = slot.ahead != nullptr ? slot.ahead->outstanding() : std::chrono::nanoseconds(0),
                           .unit = unit(*slot.job),
                           .job = self.number},
                          waited);
}

void Gate::let_in(const Slot& slot, const Verdict& verdict, std::chrono::nanoseconds now) {
  if (!fills_gaps()) {
    return;
  }
  member_of(slot).record.admit(now, std::chrono::nanoseconds(units_.load()), verdict, expected_op(slot));
  for (const Member& member : members_) {
    if (outranks(member.slot->priority, slot.priority) &&
        (member.slot->interrupts.load(std::memory_order_relaxed) & kFilled) == 0) {
      member.slot->interrupts.fetch_or(kFilled, std::memory_order_release);
    }
  }
}

/// Records a marker on the streams of higher jobs outside their ops: on those that have none for the job's counter or,
/// with `kHidden`, that seem to be done but have work, of kernels that are not ops. Returns true if it has recorded
/// one, or if a job has begun an op meanwhile: the policy must be asked again. So it must, with `kHidden`, while a job
/// that waits on the device has work on other streams.
bool Gate::record_markers(std::unique_lock<std::mutex>& lock, const Slot& slot, Work work) {
  struct Due {
    const Slot* slot;
    std::shared_ptr<DeviceStream> stream;
    std::uint64_t activity;
    std::optional<DeviceWait> wait;
    bool may_mark;  // the last marker is long ago
  };
  std::vector<Due> due;
  if (!policy_->watches_others()) {
    return false;
  }
  for (Member& member : members_) {
    const std::uint64_t activity = member.slot->activity.load(std::memory_order_acquire);
    const auto wait = wait_of(member);
    const bool inside = (activity & 1) != 0 && !wait;
    if (member.stream != nullptr && policy_->concerns(standing(slot), standing(*member.slot)) && !inside &&
        (work == Work::kHidden ? wait || member.seems_done(activity)
                               : !wait && !member.has_marker(activity) && has_settled(member, activity))) {
      due.push_back({member.slot, member.stream, activity, wait, clock_.now() - member.marked_at >= kBetweenMarkers});
    }
  }
  if (due.empty()) {
    return false;
  }
  lock.unlock();
  // The threads of a job have one stream. 0: it is done.
  std::map<DeviceStream*, std::optional<DeviceStream::Marker>> markers;
  bool ask_again = false;
  for (const Due& put : due) {
    if (put.wait) {
      ask_again = ask_again || put.stream->has_work_beside(put.wait->stream);
      continue;
    }
    const auto [marker, is_first] = markers.try_emplace(put.stream.get());
    if (!is_first) {
      continue;
    }
    if (work == Work::kOps && put.stream->has_finished()) {
      marker->second = 0;
    } else if (work == Work::kOps || put.stream->has_work()) {
      ask_again = true;
      const DeviceStream::Marker recorded = put.may_mark ? put.stream->record_marker() : 0;
      if (recorded != 0) {  // else a graph is being captured, or the last marker is too new
        marker->second = recorded;
      }
    }
  }
  lock.lock();
  for (Member& member : members_) {
    for (const Due& put : due) {
      if (member.slot != put.slot || member.stream != put.stream) {
        continue;
      }
      if (put.wait) {
        const auto wait = wait_of(member);
        ask_again = ask_again || !wait || wait->number != put.wait->number;
        continue;
      }
      const auto marker = markers.at(put.stream.get());
      ask_again = ask_again || marker || member.slot->activity.load(std::memory_order_acquire) != put.activity;
      if (marker) {
        member.marker = *marker;
        member.marker_activity = put.activity;
        member.marked_at = *marker != 0 ? clock_.now() : member.marked_at;
      }
    }
  }
  return ask_again;
}

bool Gate::has_settled(Member& member, std::uint64_t activity) {
  const auto now = clock_.now();
  if (member.seen_activity != activity) {
    member.seen_activity = activity;
    member.seen_at = now;
  }
  const Slot& slot = *member.slot;
  return now - member.seen_at >= kSettled || slot.idle.load(std::memory_order_acquire) ||
         slot.gap_mean.load(std::memory_order_acquire) > 0;
}

bool Gate::try_enter(const Slot& slot) {
  std::unique_lock lock(mutex_);
  return admit(lock, slot, clock_.now()).admit;
}

/// Lets the job in, which has waited since `began`, or says when to ask again.
Verdict Gate::admit(std::unique_lock<std::mutex>& lock, const Slot& slot, std::chrono::nanoseconds began) {
  const bool polls =
      std::any_of(members_.begin(), members_.end(), [](const Member& member) { return member.stream != nullptr; });
  if (const auto held = is_paced(slot) ? pace_.wait(clock_.now()) : std::chrono::nanoseconds(0); held.count() > 0) {
    return {.admit = false, .retry_after = polls ? std::min(held, kCheck) : held};
  }
  record_markers(lock, slot, Work::kOps);
  const auto now = clock_.now();
  Verdict verdict = ask(slot, now, now - began);
  if (verdict.admit && !record_markers(lock, slot, Work::kHidden)) {
    let_in(slot, verdict, now);
    return verdict;
  }
  const auto retry_after = verdict.admit ? kPoll : verdict.retry_after;
  return {.admit = false, .retry_after = polls ? std::min(retry_after, kPoll) : retry_after};
}

/// The member's record says that it waits, until the destructor. Both under the gate's lock, which the destructor takes
/// if an exception comes from where it was released.
class Gate::Waiting {
 public:
  Waiting(Gate& gate, std::unique_lock<std::mutex>& lock, const Slot& slot) : gate_(gate), lock_(lock), slot_(slot) {
    gate_.member_of(slot_).record.waits = true;
  }
  ~Waiting() {
    if (!lock_.owns_lock()) {
      lock_.lock();
    }
    gate_.member_of(slot_).record.waits = false;
  }
  Waiting(const Waiting&) = delete;  // refers to a member
  Waiting& operator=(const Waiting&) = delete;

 private:
  Gate& gate_;
  std::unique_lock<std::mutex>& lock_;
  const Slot& slot_;
};

bool Gate::wait_turn(const Slot& slot) {
  std::unique_lock lock(mutex_);
  const Waiting waiting(*this, lock, slot);
  return poll_turn(lock, slot);
}

bool Gate::poll_turn(std::unique_lock<std::mutex>& lock, const Slot& slot) {
  const auto began = clock_.now();
  auto checked = began;
  while (true) {
    const std::uint32_t seen = changed_.value();
    if (has(*slot.job, kSuspend | kHold | kFork | (slot.job == &slot ? kCancel : kLeaves))) {
      return false;
    }
    const auto now = clock_.now();
    if (now - checked >= kCheck) {
      check_streams(lock);
      checked = now;
    }
    const Verdict verdict = admit(lock, slot, began);
    if (verdict.admit) {
      return true;
    }
    lock.unlock();
    clock_.wait(changed_, seen, now + verdict.retry_after);
    lock.lock();
  }
}

/// Throws the error of a member's device.
void Gate::check_streams(std::unique_lock<std::mutex>& lock) {
  std::vector<std::shared_ptr<DeviceStream>> streams;
  for (const Member& member : members_) {
    if (member.stream != nullptr) {
      streams.push_back(member.stream);
    }
  }
  lock.unlock();
  for (const auto& stream : streams) {
    stream->check();
  }
  streams.clear();  // the last reference to a stream waits for the device
  lock.lock();
}

void Gate::wait_while(Slot& slot, Interrupt bit) {
  while (true) {
    const std::uint32_t seen = slot.changed.value();
    if (!has(slot, bit) || has(slot, kCancel)) {
      return;
    }
    clock_.wait(slot.changed, seen, kNever);
  }
}

void Gate::sleep(Slot& slot, std::chrono::nanoseconds duration) {
  const auto now = clock_.now();
  const auto deadline = duration < kNever - now ? now + duration : kNever;
  while (true) {
    const std::uint32_t seen = slot.changed.value();
    if (has(slot, kCancel) || clock_.now() >= deadline) {
      return;
    }
    clock_.wait(slot.changed, seen, deadline);
  }
}

}  // namespace torchshare
