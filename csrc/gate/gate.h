#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "gate/slot.h"
#include "model/pace.h"
#include "policy/admission.h"

namespace torchshare {

/// Where jobs wait before an op: until the policy admits them, while suspended or held, or for a time. Any thread.
/// Every wait ends at once when the job is cancelled.
/// Only members that wait for their turn take the lock; a job that no other outranks never takes it between its first
/// and its last op (see Note [Priority inversion]).
///
/// Note [Asynchronous devices]
/// On a GPU a job leaves an op as soon as it is launched, and counts as inside until its stream has no more work.
/// Finding out costs that job no time on the host: the waiting job records a marker on that stream, once per state of
/// the job's counter, and then reads how far the stream has come. A marker covers all work launched before it, so it is
/// valid for the counter as read before it was recorded. Each is work for the GPU, so none is recorded while the job
/// launches op after op: only once it has begun no op for `kSettled`, has announced a gap, or waits for input; none if
/// the driver says that the stream is done; and at most one in `kBetweenMarkers`.
/// Kernels that are not ops (Triton's, those of an extension) do not change the counter, so before a job is admitted
/// beside a stream that seems to be done, the driver is asked whether it is. Both calls of the driver are made without
/// the gate's lock. A job whose stream waits for other ranks is idle; see Note [Waits on the device]. A device that has
/// failed reaches no marker any more, so a job that waits for long asks the device for its error. `try_enter` and
/// `wait_turn` throw what these calls throw. A policy that does not look at other jobs, and a job that the pace holds,
/// need no marker.
class Gate {
 public:
  static constexpr std::chrono::nanoseconds kSettled = std::chrono::microseconds(50);
  static constexpr std::chrono::nanoseconds kBetweenMarkers = std::chrono::microseconds(200);

  Gate(std::unique_ptr<GatePolicy> policy, Clock& clock);
  Gate(const Gate&) = delete;  // memberships refer to it
  Gate& operator=(const Gate&) = delete;

  /// Adds a slot, which must outlive its removal. `stream` is the job's, on an asynchronous device.
  void add(Slot& slot, std::shared_ptr<DeviceStream> stream = nullptr);
  void remove(Slot& slot);

  /// Adds a slot; the destructor removes it.
  class Membership {
   public:
    Membership(Gate& gate, Slot& slot, std::shared_ptr<DeviceStream> stream) : gate_(gate), slot_(slot) {
      gate_.add(slot_, std::move(stream));
    }
    ~Membership() { gate_.remove(slot_); }
    Membership(const Membership&) = delete;  // the gate points at its slot
    Membership& operator=(const Membership&) = delete;

   private:
    Gate& gate_;
    Slot& slot_;
  };

  /// Sets or clears a bit of `slot.interrupts` and wakes its job.
  void set(Slot& slot, Interrupt bit);
  void clear(Slot& slot, Interrupt bit);
  /// Called when the job starts or stops waiting for input; while it waits, lower jobs may enter at once.
  void set_idle(Slot& slot, bool idle);
  /// True if the policy regards what other jobs do.
  bool watches_others() const { return policy_->watches_others(); }
  /// Called when a job left an op for a gap that is worth filling: waiting jobs ask the policy again.
  void gap_opened();

  /// True if the policy uses forecasts of ops and gaps.
  bool forecasts() const { return policy_->forecasts(); }
  /// True if the policy lets lower jobs into gaps that it forecasts.
  bool fills_gaps() const { return policy_->forecasts() && policy_->watches_others(); }
  /// True if an op of `slot` may have to wait for another member.
  bool is_lower(const Slot& slot) const { return (slot.interrupts.load(std::memory_order_relaxed) & kContended) != 0; }
  // Called around an op of a job that another outranks, if the policy forecasts.
  void begin_filling() { fillers_.fetch_add(1, std::memory_order_acq_rel); }
  void end_filling() { fillers_.fetch_sub(1, std::memory_order_acq_rel); }
  bool is_filled() const { return fillers_.load(std::memory_order_acquire) > 0; }

  // For a periodic job; see EdfPolicy. On its own thread. A unit that begins or ends takes no lock.
  void set_periodic(Slot& slot, bool is_periodic);
  /// Called at the end of a unit that took `took`; the next one is released at `release`, kNever: there is none.
  void end_unit(Slot& slot, std::chrono::nanoseconds took, std::chrono::nanoseconds release);
  void begin_unit(Slot& slot, std::chrono::nanoseconds deadline);
  /// Sets how long others may stay on the device after the release of a unit.
  void set_blocking_allowed(std::chrono::nanoseconds time);
  /// The names of the jobs that are inside an op, other than that of `slot`; none if the lock is held.
  std::vector<std::string> others_inside(const Slot& slot) const;

  /// Sets the part of each cycle in which jobs that another outranks may enter; within it, the policy decides.
  void set_pace(const Pace& pace);
  Pace pace() const;

  /// Asks the policy, once. On the job's own thread.
  [[nodiscard]] bool try_enter(const Slot& slot);
  /// Waits until the policy admits the job (returns true) or until it is cancelled, suspended or held (false).
  [[nodiscard]] bool wait_turn(const Slot& slot);
  /// Waits while `bit` is set and the job is not cancelled.
  void wait_while(Slot& slot, Interrupt bit);
  /// Waits for `duration`, or until the job is cancelled.
  void sleep(Slot& slot, std::chrono::nanoseconds duration);

 private:
  struct Member {
    Slot* slot;
    std::uint64_t number;  // in the order in which jobs were added
    AdmissionRecord record;
    std::shared_ptr<DeviceStream> stream{};
    DeviceStream::Marker marker = 0;  // covers all work up to `marker_activity`; 0: the device had done it
    std::optional<std::uint64_t> marker_activity{};  // Slot::activity, read before recording
    std::chrono::nanoseconds marked_at{-kBetweenMarkers};
    std::uint64_t seen_activity = 0;      // Slot::activity, at a job's last look for whether a marker is due
    std::chrono::nanoseconds seen_at{0};  // when it was first seen

    bool has_marker(std::uint64_t activity) const { return marker_activity == activity; }
    bool seems_done(std::uint64_t activity) const { return has_marker(activity) && stream->passed() >= marker; }
  };

  class Waiting;

  Verdict admit(std::unique_lock<std::mutex>& lock, const Slot& slot, std::chrono::nanoseconds began);
  bool poll_turn(std::unique_lock<std::mutex>& lock, const Slot& slot);
  enum class Work { kOps, kHidden };  // hidden: of kernels that are not ops
  bool record_markers(std::unique_lock<std::mutex>& lock, const Slot& slot, Work work);
  bool has_settled(Member& member, std::uint64_t activity);
  void check_streams(std::unique_lock<std::mutex>& lock);
  Verdict ask(const Slot& slot, std::chrono::nanoseconds now, std::chrono::nanoseconds waited);
  std::optional<DeviceWait> wait_of(const Member& member) const;
  UnitState unit(const Slot& job) const;
  JobSnapshot snapshot(const Member& member) const;
  void let_in(const Slot& slot, const Verdict& verdict, std::chrono::nanoseconds now);
  Member& member_of(const Slot& slot);
  bool is_paced(const Slot& slot) const;
  void refresh_contention();

  const std::unique_ptr<GatePolicy> policy_;
  Clock& clock_;
  mutable std::mutex mutex_;  // guards members_, added_, pace_, blocking_allowed_
  std::vector<Member> members_;
  std::uint64_t added_ = 0;  // members, since the beginning
  Pace pace_;
  std::chrono::nanoseconds blocking_allowed_{0};
  std::atomic<std::int64_t> units_{0};  // ns; see Admission
  std::atomic<int> fillers_{0};
  EventCount changed_;  // members in wait_turn wait for it
};

}  // namespace torchshare
