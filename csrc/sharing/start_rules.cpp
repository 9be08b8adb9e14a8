#include "sharing/start_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

#include "model/named.h"
#include "sharing/start_rules/after_delay.h"
#include "sharing/start_rules/after_job.h"
#include "sharing/start_rules/at_step.h"
#include "sharing/start_rules/automatic.h"
#include "sharing/start_rules/now.h"

namespace torchshare {
namespace {

using Parser = std::shared_ptr<StartRule> (*)(std::string_view text);  // null for the text of another rule

// A new rule is one file and one line here.
constexpr Named<Parser> kRules[] = {
    {"'now'", StartNow::parse},
    {"'auto'", StartAuto::parse},
    {"'after:<job>'", StartAfterJob::parse},
    {"'step:<k>' (steps of the primary, k >= 0)", StartAtStep::parse},
    {"0 to 1e9 seconds", StartAfterDelay::parse},
};

bool has_started(const JobRecord& job) {
  return job.state >= JobState::kRunning;
}

/// The jobs whose ends, at the latest, a job waits for.
std::vector<const JobRecord*> awaited_by(const JobRecord& job, const JobRecords& jobs) {
  std::vector<const JobRecord*> awaited;
  if (has_started(job)) {
    return awaited;
  }
  for (const Predecessor& each : job.after) {
    awaited.push_back(each.job.get());
  }
  if (const JobRecord* const other = job.start->awaited({job, jobs})) {
    awaited.push_back(other);
  }
  return awaited;
}

}  // namespace

std::shared_ptr<StartRule> parse_start(std::string_view text) {
  for (const auto& [form, parse] : kRules) {
    if (auto rule = parse(text)) {
      return rule;
    }
  }
  auto forms = names_of(kRules);
  const std::string_view last = forms.back();
  forms.pop_back();
  throw std::invalid_argument(fmt::format("start must be {} or {}, got '{}'", fmt::join(forms, ", "), last, text));
}

void StartCheck::check(const JobRecord& job) {
  if (has_started(job)) {
    return;
  }
  if (const std::string fault = job.start->fault({job, jobs_}); !fault.empty()) {
    throw std::invalid_argument(fmt::format("job '{}': {}", job.name, fault));
  }
  const auto cycle = cycles_.find(&job, [this](const JobRecord* each) { return awaited_by(*each, jobs_); });
  if (!cycle.empty()) {
    std::string path;
    for (const JobRecord* const each : cycle) {
      path += fmt::format("'{}' -> ", each->name);
    }
    throw std::invalid_argument(fmt::format("jobs wait for each other to start: {}'{}'", path, cycle.front()->name));
  }
}

std::vector<std::string> lost_starts(const JobRecords& jobs) {
  std::vector<std::string> lost;
  for (const auto& [place, job] : jobs.in_order()) {
    if (!job->start->fault({*job, jobs}).empty()) {
      lost.push_back(job->name);
    }
  }
  return lost;
}

}  // namespace torchshare
