#include "runtime/bound_keeper.h"

#include <fmt/format.h>

namespace torchshare {
namespace {

constexpr std::uint64_t kWarmUpSteps = 3;  // steps or answers of a job; not used to estimate slowdowns
constexpr std::uint64_t kOtherUnit = 16;   // steps, or answers in a row, from which on they are what is bound

}  // namespace

BoundKeeper::BoundKeeper(std::optional<double> max_slowdown, std::size_t keep, Gate& gate, Timeline& timeline)
    : max_slowdown_(max_slowdown), timeline_(timeline), bounds_(keep, gate) {
  if (max_slowdown_) {
    SlowdownBound{*max_slowdown_};  // throws if it is invalid, before the first step
  }
}

/// Called with a step or an answer that is not the bound's unit.
bool BoundKeeper::changes_unit(const SlowdownBound& bound, LiveJob& job, std::chrono::nanoseconds now) {
  return bound.unit() == BoundUnit::kRequest ? ++job.steps_unlike_bound >= kOtherUnit
                                             : job.answers_since_step >= kOtherUnit && !bound.is_current(now);
}

void BoundKeeper::step(const JobTable& jobs, LiveJob& job, BoundUnit unit, std::uint64_t count,
                       std::chrono::nanoseconds begin, std::chrono::nanoseconds now) {
  if (!max_slowdown_) {
    return;
  }
  const SlowdownBound* bound = bounds_.find(job.id());
  if (bound != nullptr && bound->unit() != unit && !changes_unit(*bound, job, now)) {
    return;
  }
  const bool is_kept = !is_outranked(jobs, job);
  if (is_kept && (bound == nullptr || bound->unit() != unit)) {
    job.steps_unlike_bound = 0;
    const auto profiled = unit == BoundUnit::kStep ? job.profiled_step : std::nullopt;
    bound = &bounds_.set(job.id(), SlowdownBound(*max_slowdown_, profiled, unit));
  }
  if (bound == nullptr) {
    return;
  }
  const std::uint64_t windows = bound->windows();
  const bool could_hold = !bound->cannot_hold();
  bounds_.update(job.id(), now, is_kept, [&](SlowdownBound& kept, const Pace& applied) {
    if (count <= kWarmUpSteps) {
      kept.warm_up(begin, now);
    } else if (is_kept) {
      kept.step(begin, now, has_lower_beside(jobs, job), applied);
    }
  });
  if (could_hold && bound->cannot_hold()) {
    record(job.id(), now, *bound, fmt::format("{:.3g} cannot be held, lower jobs wait for the end", *max_slowdown_));
  } else if (bound->windows() != windows) {
    record(job.id(), now, *bound, fmt::format("lower jobs may run {:.3g} of the time", bound->pace().share));
  }
}

void BoundKeeper::record(JobId job, std::chrono::nanoseconds now, const SlowdownBound& bound, std::string_view what) {
  timeline_.record_decision(job, now, [&] {
    return fmt::format("bound: {}: a {} alone takes {:.4g} ms, others cost it {:.3g} of the time they may run", what,
                       bound.unit() == BoundUnit::kStep ? "step" : "request", 1e3 * bound.alone(), bound.loss());
  });
}

}  // namespace torchshare
