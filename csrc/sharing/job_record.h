#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/job_id.h"
#include "sharing/predecessors.h"
#include "torchshare/values.h"

namespace torchshare {

class StartRule;

/// What start rules know of a job. When the job has ended, its record is all that is kept of it, and changes no more.
struct JobRecord {
  JobId id;
  std::string name;
  Priority priority;
  std::shared_ptr<const StartRule> start;  ///< when it may start
  JobState state = JobState::kPending;
  std::uint64_t steps = 0;              ///< of this run
  std::uint64_t earlier_steps = 0;      ///< of earlier runs, whose checkpoint it goes on from
  std::vector<Predecessor> after = {};  ///< that must end before its start rule applies; empty once it has ended

  std::uint64_t all_steps() const { return earlier_steps + steps; }
};

}  // namespace torchshare
