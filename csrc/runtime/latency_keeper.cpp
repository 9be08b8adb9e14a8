#include "runtime/latency_keeper.h"

#include <fmt/format.h>

namespace torchshare {

void LatencyKeeper::promise(const JobTable& jobs, const LiveJob& job, const LatencyTarget& target,
                            std::chrono::nanoseconds now) {
  promises_.add(job.id(), LatencyPace(target), keeps(jobs, job, target, now));
}

bool LatencyKeeper::keeps(const JobTable& jobs, const LiveJob& job, const LatencyTarget& target,
                          std::chrono::nanoseconds now) {
  const bool kept = !is_outranked(jobs, job);
  if (kept ? outranked_.erase(job.id()) > 0 : outranked_.insert(job.id()).second) {
    timeline_.record_decision(job.id(), now, [&] {
      return fmt::format("slo: {} is {}", to_string(target),
                         kept ? "kept again" : "not kept while a job of higher priority runs");
    });
  }
  return kept;
}

void LatencyKeeper::answered(const JobTable& jobs, const LiveJob& job, const JobMessage& answer) {
  LatencyPace* const promise = promises_.find(job.id());
  if (promise == nullptr || !keeps(jobs, job, promise->target(), answer.at)) {
    return;
  }
  LatencyPace& pace = *promise;
  const bool was_held = pace.pace().share == 0;
  const bool could_hold = !pace.cannot_hold();
  promises_.update(pace, [&] {
    pace.answered(answer.at, answer.at - answer.arrived, answer.taken - answer.arrived, has_lower_beside(jobs, job));
  });
  const bool is_held = pace.pace().share == 0;
  if (could_hold && pace.cannot_hold()) {
    timeline_.record_decision(job.id(), answer.at, [&] {
      return fmt::format("slo: {} cannot be held, even alone; lower jobs wait for the end", to_string(pace.target()));
    });
  } else if (was_held != is_held) {
    timeline_.record_decision(job.id(), answer.at, [&] {
      const LatencyStats stats = pace.stats();
      return fmt::format("slo: {}: {} of {} requests were late, lower jobs {}", to_string(pace.target()), stats.misses,
                         stats.answered, is_held ? "are held" : "may run again");
    });
  }
}

}  // namespace torchshare
