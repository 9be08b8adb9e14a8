#include "runtime/latency_keeper.h"

#include <fmt/format.h>

namespace torchshare {

void LatencyKeeper::promise(const JobTable& jobs, const LiveJob& job, const LatencyTarget& target,
                            std::chrono::nanoseconds now) {
  if (promises_.find(job.id()) == nullptr) {
    promises_.set(job.id(), LatencyPace(target));
  }
  keeps(jobs, job, target, now);
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
  const LatencyPace* const promise = promises_.find(job.id());
  if (promise == nullptr) {
    return;
  }
  const bool is_kept = keeps(jobs, job, promise->target(), answer.at);
  const bool was_held = promise->pace().share == 0;
  const bool could_hold = !promise->cannot_hold();
  promises_.update(job.id(), answer.at, is_kept, [&](LatencyPace& pace, const Pace&) {
    const auto latency = answer.at - answer.arrived;
    pace.answered(answer.at, latency, answer.taken - answer.arrived, is_kept && has_lower_beside(jobs, job));
  });
  const bool is_held = promise->pace().share == 0;
  if (could_hold && promise->cannot_hold()) {
    timeline_.record_decision(job.id(), answer.at, [&] {
      return fmt::format("slo: {} cannot be held, even alone; lower jobs wait until it holds again",
                         to_string(promise->target()));
    });
  } else if (was_held != is_held) {
    timeline_.record_decision(job.id(), answer.at, [&] {
      const LatencyStats stats = promise->stats();
      return fmt::format("slo: {}: {} of {} requests were late, lower jobs {}", to_string(promise->target()),
                         stats.misses, stats.answered, is_held ? "are held" : "may run again");
    });
  }
}

}  // namespace torchshare
