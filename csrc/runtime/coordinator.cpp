#include "runtime/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace torchshare {

namespace {

constexpr std::uint64_t kWarmUpSteps = 3;  // of a job, that say nothing of the others

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// An instant that was given in seconds, which may be never.
std::chrono::nanoseconds instant(double when) {
  return when < seconds(kNever) ? std::chrono::nanoseconds(static_cast<std::int64_t>(when * 1e9)) : kNever;
}

}  // namespace

Coordinator::Coordinator(Clock& clock, Timeline& timeline, Gate& gate, std::optional<double> max_slowdown)
    : clock_(clock), timeline_(timeline), gate_(gate), max_slowdown_(max_slowdown), sharing_(max_slowdown) {
  if (max_slowdown_) {
    gate_.set_pace(SlowdownBound(*max_slowdown_).pace());
  }
}

JobId Coordinator::add(Admission admission, Slot& slot) {
  const std::string& name = admission.name;
  if (name.empty()) {
    throw std::invalid_argument("job name is empty: expected a name that is not in use");
  }
  std::lock_guard lock(mutex_);
  if (std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.told.name == name; })) {
    throw std::invalid_argument(fmt::format("job '{}': the name is taken by another job of this runtime", name));
  }
  const auto now = clock_.now();
  const auto job = static_cast<JobId>(entries_.size());
  entries_.push_back({.told = std::move(admission), .slot = &slot, .arrival = now});
  const Admission& told = entries_.back().told;
  try {
    if (open_) {
      check_starts(views());
    }
    sharing_.arrive(job, {.name = told.name,
                          .priority = told.priority,
                          .automatic = std::holds_alternative<StartAuto>(told.start),
                          .starts_now = std::holds_alternative<StartNow>(told.start),
                          .steps = told.steps,
                          .profile = told.profile});
  } catch (...) {
    entries_.pop_back();
    throw;
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
  if (std::holds_alternative<StartAuto>(entry.told.start)) {
    if (!entry.sharing_started) {
      share();
    }
    if (entry.sharing_started) {
      entry.wait = Wait::kStarted;
    }
    return instant(sharing_.retry_at());
  }
  const auto now = clock_.now();
  const StartDecision decision = decide_start(views(), job, now - entry.arrival);
  if (!decision.start) {
    return decision.retry_after ? now + *decision.retry_after : kNever;
  }
  record_decision(job, "start: " + decision.reason);
  entry.wait = Wait::kStarted;
  changed_.notify_all();
  return kNever;
}

void Coordinator::decide_waiting() {
  for (JobId job = 0; starting_ > 0 && job < entries_.size(); ++job) {
    decide(job);
  }
  share();
}

void Coordinator::share() {
  if (!open_) {
    return;  // not everybody is here yet
  }
  const double former_retry = sharing_.retry_at();
  for (const AutoSharing::Order& order : sharing_.decide(seconds(clock_.now()))) {
    Entry& entry = entries_[order.job];
    if (entry.start_cancelled) {
      continue;  // it is on its way out
    }
    switch (order.action) {
      case AutoSharing::Action::kStart:
        entry.sharing_started = true;
        entry.wait = entry.wait == Wait::kForStart ? Wait::kStarted : entry.wait;
        record_decision(order.job, "start: auto: " + order.reason);
        break;
      case AutoSharing::Action::kStay:
        record_decision(order.job, "stay: auto: " + order.reason);
        break;
      case AutoSharing::Action::kHold:
        entry.held = true;
        gate_.set(*entry.slot, kHold);
        record_decision(order.job, "hold: auto: " + order.reason);
        break;
      case AutoSharing::Action::kRelease:
        entry.held = false;
        gate_.clear(*entry.slot, kHold);
        record_decision(order.job, "release: auto: " + order.reason);
        break;
    }
    changed_.notify_all();
  }
  if (sharing_.retry_at() < former_retry) {
    changed_.notify_all();  // who waits must look earlier than it meant to
  }
}

void Coordinator::record_decision(JobId job, std::string what) {
  const auto now = clock_.now();
  timeline_.record({now, now, job, EventKind::kDecision, 0, std::move(what)});
}

void Coordinator::wait_released(JobId job) {
  std::unique_lock lock(mutex_);
  Entry& entry = entries_[job];
  if (!entry.held || entry.start_cancelled) {
    return;
  }
  move_locked(job, JobState::kSuspended);
  while (entries_[job].held && !entries_[job].start_cancelled) {
    clock_.wait_until(changed_, lock, instant(sharing_.retry_at()));
    share();
  }
  move_locked(job, JobState::kRunning);
}

void Coordinator::expect(JobId job, double steps, bool for_good) {
  std::lock_guard lock(mutex_);
  sharing_.expect(job, steps, for_good);
}

void Coordinator::cancel_start(JobId job) {
  {
    std::lock_guard lock(mutex_);
    entries_[job].start_cancelled = true;
    if (std::exchange(entries_[job].held, false)) {
      gate_.clear(*entries_[job].slot, kHold);
    }
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
  const JobState from = std::exchange(entry.state, to);
  entry.last_step = {};
  const auto now = clock_.now();
  timeline_.record({now, now, job, EventKind::kState, 0, std::string(to_string(to))});
  tell_sharing(job, from, to);
  decide_waiting();
  changed_.notify_all();
  return true;
}

void Coordinator::count_step(JobId job) {
  std::lock_guard lock(mutex_);
  ++entries_[job].steps;
  const auto now = clock_.now();
  sharing_.step(job, seconds(now));
  keep_bound(job, now);
  decide_waiting();
}

void Coordinator::tell_sharing(JobId job, JobState from, JobState to) {
  const bool automatic = std::holds_alternative<StartAuto>(entries_[job].told.start);
  if (is_terminal(to)) {
    entries_[job].held = false;
    sharing_.end(job);
  } else if (to == JobState::kRunning && from != JobState::kSuspended && !automatic) {
    sharing_.start(job, seconds(clock_.now()));
  } else if ((to == JobState::kSuspended && !entries_[job].held) || from == JobState::kSuspended) {
    sharing_.suspend(job, to == JobState::kSuspended);
  }
}

void Coordinator::keep_bound(JobId job, std::chrono::nanoseconds now) {
  Entry& entry = entries_[job];
  const auto begin = std::exchange(entry.last_step, now);
  if (!max_slowdown_ || begin.count() == 0 || entry.steps <= kWarmUpSteps || is_outranked(job)) {
    return;
  }
  const bool beside = has_lower_beside(job);
  if (entry.bound == nullptr) {
    const auto& profile = entry.told.profile;
    entry.bound =
        std::make_unique<SlowdownBound>(*max_slowdown_, profile ? std::optional(profile->step) : std::nullopt);
    gate_.set_pace(entry.bound->pace());
  }
  SlowdownBound& bound = *entry.bound;
  const Pace former = bound.pace();
  const std::uint64_t windows = bound.windows();
  const bool could_hold = !bound.cannot_hold();
  bound.step(begin, now, beside);
  if (bound.pace() != former) {
    gate_.set_pace(bound.pace());
  }
  const auto figures = [&] {
    return fmt::format("a step alone takes {:.4g} ms, others cost it {:.3g} of the time they may run",
                       1e3 * bound.alone(), bound.loss());
  };
  if (could_hold && bound.cannot_hold()) {
    record_decision(
        job, fmt::format("bound: {:.3g} cannot be held, lower jobs wait for the end: {}", *max_slowdown_, figures()));
  } else if (bound.windows() != windows) {
    record_decision(job,
                    fmt::format("bound: lower jobs may run {:.3g} of the time: {}", bound.pace().share, figures()));
  }
}

bool Coordinator::has_lower_beside(JobId job) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& other) {
    return outranks(entries_[job].told.priority, other.told.priority) && other.state == JobState::kRunning;
  });
}

bool Coordinator::is_outranked(JobId job) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& other) {
    return outranks(other.told.priority, entries_[job].told.priority) &&
           (other.state == JobState::kRunning || other.state == JobState::kSuspended);
  });
}

std::optional<BoundStats> Coordinator::bound(JobId job) const {
  std::lock_guard lock(mutex_);
  const auto& bound = entries_[job].bound;
  if (bound == nullptr) {
    return std::nullopt;
  }
  return BoundStats{bound->windows(), bound->windows_inside(), bound->alone(), bound->loss(), bound->pace().share};
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
    names.push_back(entry.told.name);
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
    views.push_back({entry.told.name, entry.told.priority, entry.state, entry.steps, &entry.told.start});
  }
  return views;
}

bool Coordinator::all_ended() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return is_terminal(entry.state); });
}

}  // namespace torchshare
