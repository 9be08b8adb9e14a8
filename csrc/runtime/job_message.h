#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "model/job_id.h"
#include "model/latency_target.h"
#include "torchshare/values.h"

namespace torchshare {

/// A message from a thread of a job to the coordinator.
struct JobMessage {
  enum class Kind : std::uint8_t {
    kGoesOn,               ///< it goes on from a checkpoint of an earlier run, in which it had done `steps` steps
    kStepped,              ///< it has done `steps` steps in this run
    kSteppedAfterRequest,  ///< the same, and since the step before, it has taken a request
    kExpects,              ///< it will have done `steps` steps in this run when this pass over its loader ends
    kLength,               ///< it will have done `steps` steps in this run when it ends
    kPromises,             ///< its requests are to be answered within `target`
    kAnswered,             ///< it has answered a request that arrived and was taken at the times below
    kGivenUp,              ///< it has found a request that arrived at the time below and was given up by its client
    kUnit,       ///< it has ended a unit, which took `took` without its waits; its ops so far at most `longest_op`
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
  LatencyTarget target = {};
  std::chrono::nanoseconds arrived{0};
  std::chrono::nanoseconds taken{0};
  std::chrono::nanoseconds took{0};
  std::chrono::nanoseconds longest_op{0};
};

/// The progress of a job. Any thread reads it without a lock.
struct JobStatus {
  std::atomic<JobState> state{JobState::kPending};  ///< written by the coordinator
  std::string never_starts = {};        ///< why it was cancelled; written by the coordinator before the state is
  std::atomic<std::uint64_t> steps{0};  ///< of this run; written by the job's own thread, as the next
  std::atomic<std::uint64_t> earlier_steps{0};  ///< of earlier runs, whose checkpoint it goes on from
};

}  // namespace torchshare
