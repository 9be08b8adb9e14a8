#include "runtime/job_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "sharing/start_rules.h"

namespace torchshare {

LiveJob& JobTable::add(const NewJob& new_job, Slot& slot, JobStatus& status, std::chrono::nanoseconds now) {
  if (new_job.name.empty()) {
    throw std::invalid_argument("job name must not be empty");
  }
  const JobRecord* const namesake = records_.find(new_job.name);
  if (namesake != nullptr && !is_terminal(namesake->state) && namesake->id != new_job.replaces) {
    throw std::invalid_argument(fmt::format("job names must be unique in a runtime, got '{}' twice", new_job.name));
  }
  const auto id = static_cast<JobId>(names_.size());
  auto record = std::make_shared<JobRecord>(JobRecord{id, new_job.name, new_job.priority, parse_start(new_job.start)});
  std::transform(new_job.after.begin(), new_job.after.end(), std::back_inserter(record->after), parse_predecessor);
  names_.push_back(new_job.name);
  try {
    LiveJob job{.record = std::move(record), .former = {}, .slot = &slot, .status = &status, .arrival = now};
    job.profiled_step = new_job.profile ? std::optional(new_job.profile->step) : std::nullopt;
    LiveJob& added = live_.emplace(id, std::move(job)).first->second;
    added.former = records_.add(added.record);
    return added;
  } catch (...) {
    live_.erase(id);
    names_.pop_back();
    throw;
  }
}

void JobTable::undo_add(LiveJob& job) noexcept {
  forget_name(job);
  erase(job.id());
  names_.pop_back();
}

void JobTable::forget_name(LiveJob& job) noexcept {
  records_.remove(*job.record, std::move(job.former));
  job.slot = nullptr;
}

void JobTable::replace_predecessor(JobId former, const std::shared_ptr<const JobRecord>& job) noexcept {
  for (auto& [id, live] : live_) {
    for (Predecessor& each : live.record->after) {
      if (each.job != nullptr && each.job->id == former) {
        each.job = job;
      }
    }
  }
}

LiveJob* JobTable::find(JobId job) {
  const auto known = live_.find(job);
  return known == live_.end() ? nullptr : &known->second;
}

bool JobTable::move(LiveJob& job, JobState to, std::chrono::nanoseconds at) noexcept {
  if (!can_become(job.record->state, to)) {
    return false;
  }
  job.record->state = to;
  job.status->state.store(to);
  job.last_step = {};
  timeline_.record_state(job.id(), to, at);
  if (is_terminal(to)) {
    any_ended_ = true;
    job.record->after.clear();
  }
  return true;
}

void JobTable::erase_ended() noexcept {
  if (std::exchange(any_ended_, false)) {
    std::erase_if(live_, [this](const auto& known) {
      const LiveJob& job = known.second;
      any_ended_ = any_ended_ || (job.has_ended() && job.is_inside);
      return job.has_ended() && !job.is_inside;
    });
  }
}

bool JobTable::all_ended() const {
  return std::all_of(live_.begin(), live_.end(), [](const auto& known) { return known.second.has_ended(); });
}

namespace {

template <class Holds>
bool any_beside(const JobTable& jobs, const LiveJob& job, Holds holds) {
  return std::any_of(jobs.live().begin(), jobs.live().end(), [&](const auto& known) {
    return holds(job.priority(), known.second.priority(), known.second.record->state);
  });
}

}  // namespace

bool is_outranked(const JobTable& jobs, const LiveJob& job) {
  return any_beside(jobs, job, [](Priority own, Priority other, JobState state) {
    return outranks(other, own) && (state == JobState::kRunning || state == JobState::kSuspended);
  });
}

bool has_lower_beside(const JobTable& jobs, const LiveJob& job) {
  return any_beside(jobs, job, [](Priority own, Priority other, JobState state) {
    return outranks(own, other) && state == JobState::kRunning;
  });
}

}  // namespace torchshare
