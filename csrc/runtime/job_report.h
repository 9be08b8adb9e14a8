#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "model/job_id.h"
#include "torchshare/values.h"

namespace torchshare {

/// A report from a job's own thread to the coordinator.
struct JobReport {
  enum class Kind : std::uint8_t {
    kStepped,    ///< it has done `steps` steps
    kExpects,    ///< it will have done `steps` steps when this pass over its loader ends
    kLength,     ///< it will have done `steps` steps when it ends
    kSuspended,  ///< it waits because its user suspended it
    kHeld,       ///< it waits because the coordinator holds it
    kResumed,    ///< it continues after either
    kSpilled,    ///< what it keeps in memory is off the device
    kRestored,   ///< it is back
    kEnded,      ///< in state `state`
  };
  JobId job;
  Kind kind;
  std::chrono::nanoseconds at;
  std::uint64_t steps = 0;
  JobState state = JobState::kRunning;
};

/// The progress of a job. Any thread reads it without a lock.
struct JobStatus {
  std::atomic<JobState> state{JobState::kPending};  ///< written by the coordinator
  std::atomic<std::uint64_t> steps{0};              ///< written by the job's own thread
};

}  // namespace torchshare
