#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "sharing/job_records.h"

namespace torchshare {

/// What a start rule depends on.
struct StartInputs {
  bool time = false;   ///< the time since the job's arrival
  bool jobs = false;   ///< the states of other jobs
  bool steps = false;  ///< their steps
  bool plan = false;   ///< AutoSharing, which decides in the rule's place

  bool operator==(const StartInputs&) const = default;
};

/// What a start rule sees.
struct StartView {
  const JobRecord& job;    ///< the job that waits
  const JobRecords& jobs;  ///< all jobs
  std::chrono::nanoseconds since_arrival{0};
};

struct StartDecision {
  bool start = false;
  std::optional<std::chrono::nanoseconds> retry_after = {};  ///< set if the decision depends on time
  std::string reason = {};                                   ///< with its inputs, for the timeline
};

/// Decides when a job that waits may start. Pure: no clock, no lock, nothing kept between calls.
class StartRule {
 public:
  virtual ~StartRule() = default;

  virtual StartInputs inputs() const = 0;
  virtual StartDecision decide(const StartView& view) const = 0;
  /// The job whose end, at the latest, the rule waits for. Null if it waits for none.
  virtual const JobRecord* awaited(const StartView&) const { return nullptr; }
  /// Why the rule can never hold; empty if it may.
  virtual std::string fault(const StartView&) const { return {}; }
  /// Whether the job that the rule counts has done enough with `steps` steps; true if it counts none.
  virtual bool enough(std::uint64_t /*steps*/) const { return true; }
};

/// The decision of a rule that waits for the end of `awaited`; `rule` is the rule's text.
StartDecision start_at_end(const std::string& rule, const JobRecord* awaited);

}  // namespace torchshare
