#pragma once

#include <chrono>
#include <cstdint>

#include "device/thread_priority.h"
#include "gate/slot.h"
#include "runtime/language_binding.h"
#include "runtime/runtime_state.h"
#include "torchshare/job.h"

namespace torchshare {

/// What the parts of a RuntimeJob use of it and of its runtime.
struct JobParts {
  RuntimeState& runtime;
  const JobSpec& spec;
  LanguageBinding& language;
  ThreadPriority& priority;
  Slot& slot;
  const Coordinator::Registration& registration;  ///< set once the job is registered

  JobId id() const { return registration.job(); }
  std::chrono::nanoseconds now() const { return runtime.now(); }
  void send(JobMessage::Kind kind, std::uint64_t steps = 0, JobState state = JobState::kRunning) const {
    runtime.coordinator.send({.job = id(), .kind = kind, .at = now(), .steps = steps, .state = state});
  }
};

}  // namespace torchshare
