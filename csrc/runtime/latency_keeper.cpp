#include "runtime/latency_keeper.h"

#include <fmt/format.h>

#include <algorithm>

namespace torchshare {

void LatencyKeeper::promise(const LiveJob& job, const LatencyTarget& target) {
  const LatencyPace& pace = promises_.try_emplace(job.id(), Promise{LatencyPace(target)}).first->second.pace;
  gate_.set_pace(pace.pace());
}

void LatencyKeeper::answered(const JobTable& jobs, const LiveJob& job, std::chrono::nanoseconds arrived,
                             std::chrono::nanoseconds now) {
  const auto known = promises_.find(job.id());
  if (known == promises_.end() || is_outranked(jobs, job)) {
    return;
  }
  LatencyPace& pace = known->second.pace;
  const Pace former = pace.pace();
  const bool could_hold = !pace.cannot_hold();
  pace.answered(now, now - arrived, has_lower_beside(jobs, job));
  if (pace.pace() != former) {
    gate_.set_pace(pace.pace());
  }
  if (could_hold && pace.cannot_hold()) {
    timeline_.record_decision(job.id(), now, [&] {
      return fmt::format("slo: {} cannot be held, even alone; lower jobs wait for the end", to_string(pace.target()));
    });
  } else if ((former.share == 0) != (pace.pace().share == 0)) {
    timeline_.record_decision(job.id(), now, [&] {
      const LatencyStats stats = pace.stats();
      return fmt::format("slo: {}: {} of {} requests were late, lower jobs {}", to_string(pace.target()), stats.misses,
                         stats.answered, pace.pace().share == 0 ? "are held" : "may run again");
    });
  }
}

void LatencyKeeper::end(JobId job) noexcept {
  const auto known = promises_.find(job);
  if (known == promises_.end()) {
    return;
  }
  known->second.has_ended = true;
  const auto ended = [](const auto& each) { return each.second.has_ended; };
  const auto other = std::find_if_not(promises_.begin(), promises_.end(), ended);
  gate_.set_pace(other == promises_.end() ? Pace{} : other->second.pace.pace());
  if (static_cast<std::size_t>(std::count_if(promises_.begin(), promises_.end(), ended)) > keep_) {
    promises_.erase(std::find_if(promises_.begin(), promises_.end(), ended));
  }
}

std::optional<LatencyStats> LatencyKeeper::stats(JobId job) const {
  const auto known = promises_.find(job);
  return known == promises_.end() ? std::nullopt : std::optional(known->second.pace.stats());
}

}  // namespace torchshare
