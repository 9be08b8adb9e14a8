#include "runtime/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace torchshare {

Coordinator::Coordinator(Clock& clock, Timeline& timeline) : clock_(clock), timeline_(timeline) {}

JobId Coordinator::add(std::string name, Priority priority, StartCondition start) {
  if (name.empty()) {
    throw std::invalid_argument("job name is empty: expected a name that is not in use");
  }
  std::lock_guard lock(mutex_);
  if (std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.name == name; })) {
    throw std::invalid_argument(fmt::format("job '{}': the name is taken by another job of this runtime", name));
  }
  const auto now = clock_.now();
  const auto job = static_cast<JobId>(entries_.size());
  entries_.push_back({.name = std::move(name), .priority = priority, .start = std::move(start), .arrival = now});
  if (open_) {
    try {
      check_starts(views());
    } catch (...) {
      entries_.pop_back();
      throw;
    }
  }
  timeline_.record({now, now, job, EventKind::kState, 0, std::string(to_string(JobState::kPending))});
  return job;
}

void Coordinator::open() {
  std::lock_guard lock(mutex_);
  check_starts(views());
  open_ = true;
}

bool Coordinator::wait_to_start(JobId job) {
  std::unique_lock lock(mutex_);
  ++starting_;
  entries_[job].wait = Wait::kForStart;
  auto retry_at = decide(job);
  while (entries_[job].wait == Wait::kForStart && !entries_[job].start_cancelled) {
    move_locked(job, JobState::kDelayed);
    clock_.wait_until(changed_, lock, retry_at);
    retry_at = decide(job);
  }
  --starting_;
  const bool started = entries_[job].wait == Wait::kStarted;
  move_locked(job, started ? JobState::kRunning : JobState::kCancelled);
  return started;
}

std::chrono::nanoseconds Coordinator::decide(JobId job) {
  Entry& entry = entries_[job];
  if (entry.wait != Wait::kForStart || entry.start_cancelled) {
    return kNever;
  }
  const auto now = clock_.now();
  const StartDecision decision = decide_start(views(), job, now - entry.arrival);
  if (!decision.start) {
    return decision.retry_after ? now + *decision.retry_after : kNever;
  }
  timeline_.record({now, now, job, EventKind::kDecision, 0, "start: " + decision.reason});
  entry.wait = Wait::kStarted;
  changed_.notify_all();
  return kNever;
}

void Coordinator::decide_waiting() {
  for (JobId job = 0; starting_ > 0 && job < entries_.size(); ++job) {
    decide(job);
  }
}

void Coordinator::cancel_start(JobId job) {
  {
    std::lock_guard lock(mutex_);
    entries_[job].start_cancelled = true;
    if (entries_[job].state == JobState::kPending) {
      move_locked(job, JobState::kCancelled);
    }
  }
  changed_.notify_all();
}

bool Coordinator::move(JobId job, JobState to) {
  std::lock_guard lock(mutex_);
  return move_locked(job, to);
}

bool Coordinator::move_locked(JobId job, JobState to) {
  Entry& entry = entries_[job];
  if (!can_become(entry.state, to)) {
    return false;
  }
  entry.state = to;
  const auto now = clock_.now();
  timeline_.record({now, now, job, EventKind::kState, 0, std::string(to_string(to))});
  decide_waiting();
  changed_.notify_all();
  return true;
}

void Coordinator::count_step(JobId job) {
  std::lock_guard lock(mutex_);
  ++entries_[job].steps;
  decide_waiting();
}

JobState Coordinator::state(JobId job) const {
  std::lock_guard lock(mutex_);
  return entries_[job].state;
}

std::uint64_t Coordinator::steps(JobId job) const {
  std::lock_guard lock(mutex_);
  return entries_[job].steps;
}

std::vector<std::string> Coordinator::names() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Entry& entry : entries_) {
    names.push_back(entry.name);
  }
  return names;
}

bool Coordinator::wait_all(std::chrono::nanoseconds deadline) {
  std::unique_lock lock(mutex_);
  while (!all_ended()) {
    if (clock_.now() >= deadline) {
      return false;
    }
    clock_.wait_until(changed_, lock, deadline);
  }
  return true;
}

std::vector<JobView> Coordinator::views() const {
  std::vector<JobView> views;
  for (const Entry& entry : entries_) {
    views.push_back({entry.name, entry.priority, entry.state, entry.steps, &entry.start});
  }
  return views;
}

bool Coordinator::all_ended() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return is_terminal(entry.state); });
}

}  // namespace torchshare
