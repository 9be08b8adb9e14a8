#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/cycle_finder.h"
#include "sharing/start_rule.h"

namespace torchshare {

/// Reads "now", "auto", "after:<job>", "step:<k>" or a number of seconds. Throws std::invalid_argument.
std::shared_ptr<StartRule> parse_start(std::string_view text);

/// Refuses jobs that could never start, because of a rule's fault or in a cycle. Looks at each job once, however many
/// are checked, so the jobs must not change meanwhile.
class StartCheck {
 public:
  explicit StartCheck(const JobRecords& jobs) : jobs_(jobs) {}

  /// Throws std::invalid_argument that names the job.
  void check(const JobRecord& job);

 private:
  const JobRecords& jobs_;
  CycleFinder<const JobRecord*> cycles_;
};

/// The names of the jobs whose rules can never hold.
std::vector<std::string> lost_starts(const JobRecords& jobs);

}  // namespace torchshare
