#include "runtime/bound_keeper.h"

#include <fmt/format.h>

namespace torchshare {
namespace {

constexpr std::uint64_t kWarmUpSteps = 3;  // steps or answers of a job; not used to estimate slowdowns

}  // namespace

BoundKeeper::BoundKeeper(std::optional<double> max_slowdown, std::size_t keep, Gate& gate, Timeline& timeline)
    : max_slowdown_(max_slowdown), timeline_(timeline), bounds_(keep, gate) {
  if (max_slowdown_) {
    SlowdownBound{*max_slowdown_};  // throws if it is invalid, before the first step
  }
}

void BoundKeeper::step(const JobTable& jobs, const LiveJob& job, std::uint64_t count, std::chrono::nanoseconds begin,
                       std::chrono::nanoseconds now) {
  if (!max_slowdown_ || is_outranked(jobs, job)) {
    return;
  }
  SlowdownBound* const known = bounds_.find(job.id());
  SlowdownBound& bound =
      known != nullptr ? *known : bounds_.add(job.id(), SlowdownBound(*max_slowdown_, job.profiled_step));
  if (count <= kWarmUpSteps) {
    return;
  }
  const std::uint64_t windows = bound.windows();
  const bool could_hold = !bound.cannot_hold();
  bounds_.update(bound, [&] { bound.step(begin, now, has_lower_beside(jobs, job)); });
  if (could_hold && bound.cannot_hold()) {
    record(job.id(), now, bound, fmt::format("{:.3g} cannot be held, lower jobs wait for the end", *max_slowdown_));
  } else if (bound.windows() != windows) {
    record(job.id(), now, bound, fmt::format("lower jobs may run {:.3g} of the time", bound.pace().share));
  }
}

void BoundKeeper::record(JobId job, std::chrono::nanoseconds now, const SlowdownBound& bound, std::string_view what) {
  timeline_.record_decision(job, now, [&] {
    return fmt::format("bound: {}: a step alone takes {:.4g} ms, others cost it {:.3g} of the time they may run", what,
                       1e3 * bound.alone(), bound.loss());
  });
}

}  // namespace torchshare
