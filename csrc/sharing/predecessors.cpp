#include "sharing/predecessors.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "sharing/job_records.h"

namespace torchshare {
namespace {

bool take_prefix(std::string_view& text, std::string_view prefix) {
  const bool has = text.starts_with(prefix);
  text.remove_prefix(has ? prefix.size() : 0);
  return has;
}

bool has_ended(const Predecessor& predecessor) {
  return predecessor.job != nullptr && is_terminal(predecessor.job->state);
}

}  // namespace

Predecessor parse_predecessor(std::string_view text) {
  std::string_view name = text;
  const bool must_finish = take_prefix(name, "ok:") || take_prefix(name, "afterok:");  // the latter as Slurm has it
  if (!must_finish && !take_prefix(name, "any:")) {
    take_prefix(name, "afterany:");
  }
  if (name.empty()) {
    throw std::invalid_argument(fmt::format("after must be '<job>', 'any:<job>' or 'ok:<job>', got '{}'", text));
  }
  return {std::string(name), must_finish};
}

void bind_predecessors(JobRecord& job, const JobRecords& jobs) {
  for (Predecessor& each : job.after) {
    if (each.job == nullptr) {
      each.job = jobs.share(each.name);
    }
    if (each.job == nullptr) {
      throw std::invalid_argument(
          fmt::format("job '{}': after names job '{}', which this runtime does not have", job.name, each.name));
    }
    if (each.job->id == job.id) {
      throw std::invalid_argument(fmt::format("job '{}': after names the job itself", job.name));
    }
  }
}

void unbind_predecessors(JobRecord& job) noexcept {
  for (Predecessor& each : job.after) {
    each.job = nullptr;
  }
}

bool have_ended(const std::vector<Predecessor>& predecessors) {
  return std::all_of(predecessors.begin(), predecessors.end(), has_ended);
}

std::string ends_of(const std::vector<Predecessor>& predecessors) {
  std::string ends;
  for (const Predecessor& each : predecessors) {
    const JobState state = each.job->state;
    ends += fmt::format("{}'{}' {}{}", ends.empty() ? "" : ", ", each.name, state == JobState::kCancelled ? "was " : "",
                        to_string(state));
  }
  return ends;
}

const Predecessor* find_broken(const std::vector<Predecessor>& predecessors) {
  const auto broken = std::find_if(predecessors.begin(), predecessors.end(), [](const Predecessor& each) {
    return each.must_finish && has_ended(each) && each.job->state != JobState::kFinished;
  });
  return broken == predecessors.end() ? nullptr : &*broken;
}

}  // namespace torchshare
