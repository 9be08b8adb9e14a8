#pragma once

#include <string>
#include <utility>

#include "device/clock.h"
#include "runtime/coordinator.h"

namespace torchshare {

/// A job, with the calls of its thread to the coordinator.
class Member {
 public:
  Member(Coordinator& coordinator, Clock& clock, NewJob told)
      : coordinator_(coordinator), clock_(clock), name_(told.name), slot_(told.priority) {
    registration_ = coordinator.add(std::move(told), slot_, status_);
  }
  JobId id() const { return registration_.job(); }
  const std::string& name() const { return name_; }
  Slot& slot() { return slot_; }
  JobState state() const { return status_.state.load(); }
  bool has_hold() const { return (slot_.interrupts.load() & kHold) != 0; }
  /// Sends a message, and the coordinator applies it.
  void send(JobMessage::Kind kind, JobState state = JobState::kRunning) {
    coordinator_.send({id(), kind, clock_.now(), status_.steps.load(), state});
    coordinator_.serve_once();
  }
  void go_on_after(std::uint64_t steps) {
    coordinator_.send({id(), JobMessage::Kind::kGoesOn, clock_.now(), steps});
    coordinator_.serve_once();
  }
  void step() {
    ++status_.steps;
    send(JobMessage::Kind::kStepped);
  }
  void step_after_request() {
    ++status_.steps;
    send(JobMessage::Kind::kSteppedAfterRequest);
  }
  /// Has answered a request that came so long ago.
  void answer(std::chrono::nanoseconds latency) {
    const auto now = clock_.now();
    coordinator_.send({.job = id(),
                       .kind = JobMessage::Kind::kAnswered,
                       .at = now,
                       .arrived = now - latency,
                       .taken = now - latency});
    coordinator_.serve_once();
  }
  void promise(const LatencyTarget& target) {
    coordinator_.send({.job = id(), .kind = JobMessage::Kind::kPromises, .at = clock_.now(), .target = target});
    coordinator_.serve_once();
  }
  void end(JobState state) { send(JobMessage::Kind::kEnded, state); }

 private:
  Coordinator& coordinator_;
  Clock& clock_;
  const std::string name_;
  Slot slot_;
  JobStatus status_;
  Coordinator::Registration registration_;
};

}  // namespace torchshare
