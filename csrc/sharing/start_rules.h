#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sharing/start_rule.h"

namespace torchshare {

/// Reads "now", "auto", "after:<job>", "step:<k>" or a number of seconds. Throws std::invalid_argument.
std::shared_ptr<StartRule> parse_start(std::string_view text);

/// Refuses a job that could never start, because of its rule's fault or in a cycle. Throws std::invalid_argument that
/// names the job.
void check_start(const JobRecord& job, const JobRecords& jobs);

/// The names of the jobs whose rules can never hold.
std::vector<std::string> lost_starts(const JobRecords& jobs);

}  // namespace torchshare
