#include "sharing/start_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
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

/// How one job waits for the end of another.
class WaitPath {
 public:
  explicit WaitPath(const JobRecords& jobs) : jobs_(jobs) {}

  /// Whether `from` waits for `to`, through any number of other jobs; then `names` has the jobs in between.
  bool leads(const JobRecord& from, const JobRecord& to) {
    for (const JobRecord* const next : awaited_by(from, jobs_)) {
      if (!seen_.insert(next).second) {
        continue;
      }
      names_.push_back(next->name);
      if (next == &to || leads(*next, to)) {
        return true;
      }
      names_.pop_back();
    }
    return false;
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  const JobRecords& jobs_;
  std::set<const JobRecord*> seen_;
  std::vector<std::string> names_;
};

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

void check_start(const JobRecord& job, const JobRecords& jobs) {
  if (has_started(job)) {
    return;
  }
  if (const std::string fault = job.start->fault({job, jobs}); !fault.empty()) {
    throw std::invalid_argument(fmt::format("job '{}': {}", job.name, fault));
  }
  if (WaitPath path(jobs); path.leads(job, job)) {
    throw std::invalid_argument(
        fmt::format("jobs wait for each other to start: '{}' -> '{}'", job.name, fmt::join(path.names(), "' -> '")));
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
