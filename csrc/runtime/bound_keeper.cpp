#include "runtime/bound_keeper.h"

#include <fmt/format.h>

#include <algorithm>

namespace torchshare {
namespace {

constexpr std::uint64_t kWarmUpSteps = 3;  // of a job; not used to estimate slowdowns

template <class Holds>
bool any_beside(const JobTable& jobs, const LiveJob& job, Holds holds) {
  return std::any_of(jobs.live().begin(), jobs.live().end(), [&](const auto& known) {
    return holds(job.priority(), known.second.priority(), known.second.record->state);
  });
}

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

}  // namespace

BoundKeeper::BoundKeeper(std::optional<double> max_slowdown, std::size_t keep, Gate& gate, Timeline& timeline)
    : max_slowdown_(max_slowdown), keep_(keep), gate_(gate), timeline_(timeline) {
  if (max_slowdown_) {
    SlowdownBound{*max_slowdown_};  // throws if it is invalid, before the first step
  }
}

void BoundKeeper::step(const JobTable& jobs, const LiveJob& job, std::chrono::nanoseconds begin,
                       std::chrono::nanoseconds now) {
  if (!max_slowdown_ || is_outranked(jobs, job)) {
    return;
  }
  SlowdownBound& bound = bound_of(job);
  if (job.record->steps <= kWarmUpSteps) {
    return;
  }
  const Pace former = bound.pace();
  const std::uint64_t windows = bound.windows();
  const bool could_hold = !bound.cannot_hold();
  bound.step(begin, now, has_lower_beside(jobs, job));
  if (bound.pace() != former) {
    gate_.set_pace(bound.pace());
  }
  if (could_hold && bound.cannot_hold()) {
    record(job.id(), now, bound, fmt::format("{:.3g} cannot be held, lower jobs wait for the end", *max_slowdown_));
  } else if (bound.windows() != windows) {
    record(job.id(), now, bound, fmt::format("lower jobs may run {:.3g} of the time", bound.pace().share));
  }
}

SlowdownBound& BoundKeeper::bound_of(const LiveJob& job) {
  if (const auto known = bounds_.find(job.id()); known != bounds_.end()) {
    return known->second.bound;
  }
  SlowdownBound& bound =
      bounds_.try_emplace(job.id(), SlowdownBound(*max_slowdown_, job.profiled_step)).first->second.bound;
  gate_.set_pace(bound.pace());
  return bound;
}

void BoundKeeper::record(JobId job, std::chrono::nanoseconds now, const SlowdownBound& bound, std::string_view what) {
  timeline_.record_decision(job, now, [&] {
    return fmt::format("bound: {}: a step alone takes {:.4g} ms, others cost it {:.3g} of the time they may run", what,
                       1e3 * bound.alone(), bound.loss());
  });
}

void BoundKeeper::end(JobId job) noexcept {
  const auto known = bounds_.find(job);
  if (known == bounds_.end()) {
    return;
  }
  known->second.has_ended = true;
  const auto ended = [](const auto& each) { return each.second.has_ended; };
  const auto other = std::find_if_not(bounds_.begin(), bounds_.end(), ended);
  gate_.set_pace(other == bounds_.end() ? Pace{} : other->second.bound.pace());
  if (static_cast<std::size_t>(std::count_if(bounds_.begin(), bounds_.end(), ended)) > keep_) {
    bounds_.erase(std::find_if(bounds_.begin(), bounds_.end(), ended));
  }
}

std::optional<BoundStats> BoundKeeper::stats(JobId job) const {
  const auto known = bounds_.find(job);
  return known == bounds_.end() ? std::nullopt : std::optional(known->second.bound.stats());
}

}  // namespace torchshare
