#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/job_id.h"
#include "sharing/slowdown_bound.h"
#include "torchshare/values.h"

namespace torchshare {

/// How well the bound on the primary's slowdown was kept.
struct BoundStats {
  std::uint64_t windows = 0;  ///< windows of one second in which others ran beside it
  std::uint64_t windows_inside = 0;
  double alone = 0;  ///< seconds of a step alone
  double loss = 0;   ///< fraction of the others' time that the primary loses to them
  double share = 1;  ///< fraction of the time in which others may run, as last set
  std::vector<BoundWindow> recent{};
};

/// What is kept of a job that has ended.
struct JobRecord {
  JobId id;
  std::string name;
  Priority priority;
  JobState state;
  std::uint64_t steps;
  std::optional<BoundStats> bound;
};

/// The records of a runtime's jobs; of several with one name, that of the last. Not thread-safe.
class EndedJobs {
 public:
  /// Replaces the record of that name. Has no effect if it throws std::bad_alloc.
  void add(JobRecord record);
  /// Null if there is none.
  const JobRecord* find(std::string_view name) const;
  using Place = std::pair<Priority, JobId>;
  /// In order of priority, then of submission.
  const std::map<Place, JobRecord>& in_order() const { return records_; }

 private:
  std::map<Place, JobRecord> records_;
  std::map<std::string, Place, std::less<>> by_name_;
};

}  // namespace torchshare
