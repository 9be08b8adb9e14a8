#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "model/job_id.h"
#include "torchshare/values.h"

namespace torchshare {

/// What a job's own thread tells the coordinator.
struct JobReport {
  enum class Kind : std::uint8_t {
    kStepped,    ///< it has done `steps` steps
    kExpects,    ///< it will have done `steps` steps when this pass over its loader ends
    kLength,     ///< the same, for good
    kSuspended,  ///< it waits, as its user wants
    kHeld,       ///< it waits, as the coordinator wants
    kResumed,    ///< it goes on after either
    kEnded,      ///< with `state`
  };
  JobId job;
  Kind kind;
  std::chrono::nanoseconds at;
  std::uint64_t steps = 0;
  JobState state = JobState::kRunning;
};

/// How a job is doing, for anybody to read without a lock.
struct JobStatus {
  std::atomic<JobState> state{JobState::kPending};  ///< written by the coordinator
  std::atomic<std::uint64_t> steps{0};              ///< written by the job's own thread
};

}  // namespace torchshare
