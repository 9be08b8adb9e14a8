#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/job_id.h"
#include "torchshare/values.h"

namespace torchshare {

/// The input of start decisions, one entry per job in order of submission. Of the jobs that have ended, those are
/// enough that a condition names, and the first of the highest priority.
struct JobView {
  std::string_view name;
  Priority priority;
  JobState state;
  std::uint64_t steps;  ///< with those of earlier runs, whose checkpoint it goes on from
  const StartCondition* start;
  bool withdrawn = false;  ///< the job is gone, or another has its name, so no job waits for it
  JobId id = 0;            ///< the caller's
};

struct StartDecision {
  bool start;
  std::optional<std::chrono::nanoseconds> retry_after;  ///< set if the decision depends on time
  std::string reason;                                   ///< with its inputs, for the timeline
};

/// Whether `jobs[self]` may start, `since_arrival` after it arrived. Pure.
StartDecision decide_start(std::span<const JobView> jobs, std::size_t self, std::chrono::nanoseconds since_arrival);

/// Refuses conditions that can never hold: an unknown job, the job itself, a cycle, or no job whose steps to count.
/// Throws std::invalid_argument that names the job.
void check_starts(std::span<const JobView> jobs);

}  // namespace torchshare
