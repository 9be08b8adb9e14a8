#include "runtime/job_interrupts.h"

#include <fmt/format.h>

#include "runtime/forks.h"

namespace torchshare {

void JobInterrupts::suspend() {
  job_.runtime.gate.set(job_.slot, kSuspend);
  if (cancel_requested()) {
    resume();  // the ops that clean up must not wait
  }
}

void JobInterrupts::set_forking(bool forking) {
  if (forking) {
    wait_for_sleep_at_forks();
    job_.priority.raise();  // the fork waits for what its thread does
    job_.runtime.gate.set(job_.slot, kFork);
  } else {
    job_.runtime.gate.clear(job_.slot, kFork);
    job_.priority.lower();
  }
}

void JobInterrupts::cancel() {
  if (cancel_requested_.exchange(true)) {
    return;
  }
  job_.runtime.gate.set(job_.slot, kCancel);  // first, so that no further op runs
  job_.runtime.gate.set(job_.slot, kLeaves);
  resume();
  job_.priority.raise_for_good();  // other threads wait for the job to end
  job_.runtime.coordinator.cancel_start(job_.id());
}

void JobInterrupts::give_up() {
  given_up_.store(true);
  job_.runtime.gate.set(job_.slot, kCancel);
  job_.runtime.gate.set(job_.slot, kLeaves);
  job_.runtime.coordinator.give_up(job_.id());
}

/// The job waits for others until the destructor, and may do so already. The job's own thread.
class JobInterrupts::Waiting {
 public:
  explicit Waiting(JobInterrupts& job) : job_(job), former_(job.is_waiting_.exchange(true)) {}
  ~Waiting() { job_.is_waiting_.store(former_); }
  Waiting(const Waiting&) = delete;  // bound to a thread
  Waiting& operator=(const Waiting&) = delete;

 private:
  JobInterrupts& job_;
  const bool former_;
};

void JobInterrupts::handle_interrupts() {
  while (true) {
    const std::uint32_t interrupts = job_.slot.interrupts.load(std::memory_order_acquire);
    if ((interrupts & kRaised) != 0) {
      lower_again(job_.slot, job_.priority);
    }
    if ((interrupts & (kCancel | kSuspend | kHold | kFork)) != 0 && !job_.language.may_stop()) {
      return;
    }
    if ((interrupts & kCancel) != 0) {
      unwind();
    }
    if (park(interrupts)) {
      continue;
    }
    if ((interrupts & kFork) != 0) {
      const Waiting here(*this);
      block("fork", [this] { job_.runtime.gate.wait_while(job_.slot, kFork); });
    } else if ((interrupts & kContended) == 0 || job_.runtime.gate.try_enter(job_.slot) || wait_turn()) {
      return;
    }
  }
}

bool JobInterrupts::wait_turn() {
  bool admitted = false;
  const Waiting here(*this);
  block(JobTimes::kAtGate, [&] { admitted = job_.runtime.gate.wait_turn(job_.slot); });
  return admitted;
}

bool JobInterrupts::park(std::uint32_t interrupts) {
  if ((interrupts & kSuspend) != 0) {
    wait_while(kSuspend, "suspended", JobMessage::Kind::kSuspended);
  } else if ((interrupts & kHold) != 0) {
    wait_while(kHold, "held", JobMessage::Kind::kHeld);
  }
  return (interrupts & (kSuspend | kHold)) != 0;
}

void JobInterrupts::wait_while(Interrupt bit, std::string_view reason, JobMessage::Kind kind) {
  const Waiting here(*this);
  job_.send(kind);
  if (bit == kSuspend) {
    on_suspend_();
  }
  block(reason, [&] { job_.runtime.gate.wait_while(job_.slot, bit); });
  job_.send(JobMessage::Kind::kResumed);
}

void JobInterrupts::yield_point(bool parks) {
  while (true) {
    const std::uint32_t interrupts = parks ? job_.slot.interrupts.load(std::memory_order_acquire) : 0;
    if ((cancel_requested() || (interrupts & (kSuspend | kHold)) != 0) && !job_.language.may_stop()) {
      return;
    }
    if (cancel_requested()) {
      unwind();
    }
    if (!park(interrupts)) {
      return;
    }
  }
}

void JobInterrupts::acknowledge_cancel() {
  if (!is_given_up()) {
    job_.runtime.gate.clear(job_.slot, kCancel);
  }
}

void JobInterrupts::repeat_cancel() {
  if (cancel_requested()) {
    job_.runtime.gate.set(job_.slot, kCancel);
  }
}

void JobInterrupts::unwind() {
  acknowledge_cancel();
  job_.language.raise_cancelled(fmt::format("job '{}' was cancelled", job_.spec.name));
}

}  // namespace torchshare
