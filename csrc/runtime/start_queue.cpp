#include "runtime/start_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace torchshare {

StartQueue::StartQueue(JobTable& jobs, std::optional<std::size_t> max_concurrent)
    : jobs_(jobs), max_concurrent_(max_concurrent) {
  if (max_concurrent_ == 0) {
    throw std::invalid_argument("max_concurrent must be at least 1, got 0");
  }
}

void StartQueue::enter(LiveJob& job) {
  ++inside_;
  job.is_inside = true;
  job.wait = job.start_ordered ? LiveJob::Wait::kStarted : LiveJob::Wait::kForStart;
}

void StartQueue::leave(LiveJob& job) {
  --inside_;
  job.is_inside = false;
}

AutoSharing::Orders StartQueue::decide(std::chrono::nanoseconds now, bool follows) const {
  AutoSharing::Orders orders;
  if (inside_ == 0) {
    return orders;
  }
  std::size_t places = free_places();
  for (LiveJob* const job : in_order()) {
    job->retry_at = kNever;
    const bool waits_for_order = follows && (max_concurrent_ || job->start_inputs() != StartInputs{});
    if (places == 0 || waits_for_order) {
      continue;
    }
    StartDecision decision = job->record->start->decide({*job->record, jobs_.records(), now - job->arrival});
    if (decision.retry_after) {
      job->retry_at = now + *decision.retry_after;
    }
    if (!decision.start) {
      continue;
    }
    if (job->wait == LiveJob::Wait::kForStart) {
      if (max_concurrent_) {
        decision.reason += fmt::format("; places free: {} of {}", places, *max_concurrent_);
      }
      orders.push_back({job->id(), AutoSharing::Action::kStart, std::move(decision.reason)});
    }
    --places;
  }
  return orders;
}

/// The jobs that may start by their rules, in order of priority, then of arrival.
std::vector<LiveJob*> StartQueue::in_order() const {
  std::vector<LiveJob*> waiting;
  for (auto& [id, job] : jobs_.live()) {
    const bool may_start = !job.start_ordered && !job.start_cancelled && !job.has_ended() && !job.awaits_others();
    if (may_start && !job.start_inputs().plan) {
      waiting.push_back(&job);
    }
  }
  std::stable_sort(waiting.begin(), waiting.end(),
                   [](const LiveJob* a, const LiveJob* b) { return outranks(a->priority(), b->priority()); });
  return waiting;
}

std::size_t StartQueue::free_places() const {
  if (!max_concurrent_) {
    return std::numeric_limits<std::size_t>::max();
  }
  const auto& live = jobs_.live();
  const auto taken = static_cast<std::size_t>(std::count_if(live.begin(), live.end(), [](const auto& known) {
    const LiveJob& job = known.second;
    return job.start_ordered && !job.spilled && !job.has_ended();
  }));
  return *max_concurrent_ - std::min(taken, *max_concurrent_);
}

bool StartQueue::counts_steps() const {
  const auto& live = jobs_.live();
  return std::any_of(live.begin(), live.end(), [](const auto& known) {
    const LiveJob& job = known.second;
    return job.wait == LiveJob::Wait::kForStart && !job.has_ended() && !job.awaits_others() && job.start_inputs().steps;
  });
}

}  // namespace torchshare
