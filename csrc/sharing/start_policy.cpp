#include "sharing/start_policy.h"

#include <fmt/format.h>

#include <stdexcept>

namespace torchshare {
namespace {

using Index = std::optional<std::size_t>;

Index find_job(std::span<const JobView> jobs, std::string_view name) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!jobs[i].withdrawn && jobs[i].name == name) {
      return i;
    }
  }
  return std::nullopt;
}

/// The job whose steps "step:<k>" counts: the first of the highest priority, unless `self` outranks it.
Index find_primary(std::span<const JobView> jobs, std::size_t self) {
  Index best;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (i != self && !jobs[i].withdrawn && (!best || outranks(jobs[i].priority, jobs[*best].priority))) {
      best = i;
    }
  }
  return best && !outranks(jobs[self].priority, jobs[*best].priority) ? best : std::nullopt;
}

/// The job that `jobs[self]` waits for before it starts, if any.
Index awaited(std::span<const JobView> jobs, std::size_t self) {
  const StartCondition& start = *jobs[self].start;
  if (const auto* after = std::get_if<StartAfterJob>(&start)) {
    return find_job(jobs, after->job);
  }
  return std::holds_alternative<StartAtStep>(start) ? find_primary(jobs, self) : std::nullopt;
}

bool has_started(const JobView& job) {
  return job.state >= JobState::kRunning;
}

void check_awaited(std::span<const JobView> jobs, std::size_t self) {
  const JobView& job = jobs[self];
  if (job.withdrawn || has_started(job)) {
    return;
  }
  const auto other = awaited(jobs, self);
  if (const auto* after = std::get_if<StartAfterJob>(job.start)) {
    if (!other) {
      throw std::invalid_argument(
          fmt::format("job '{}': start 'after:{}' names no job of this runtime", job.name, after->job));
    }
    if (*other == self) {
      throw std::invalid_argument(fmt::format("job '{}': start 'after:{}' waits for itself", job.name, after->job));
    }
  } else if (std::holds_alternative<StartAtStep>(*job.start) && !other) {
    throw std::invalid_argument(
        fmt::format("job '{}': start '{}' needs a job of the same or higher priority whose steps to count", job.name,
                    to_string(*job.start)));
  }
}

}  // namespace

StartDecision decide_start(std::span<const JobView> jobs, std::size_t self, std::chrono::nanoseconds since_arrival) {
  const StartCondition& start = *jobs[self].start;
  if (const auto* after = std::get_if<StartAfterDelay>(&start)) {
    const auto left = after->delay - since_arrival;
    if (left.count() > 0) {
      return {.start = false, .retry_after = left, .reason = {}};
    }
    return {.start = true, .retry_after = {}, .reason = fmt::format("{} after arrival", to_string(start))};
  }
  const auto other = awaited(jobs, self);
  if (!other) {
    return {.start = true, .retry_after = {}, .reason = to_string(start)};
  }
  const JobView& awaited_job = jobs[*other];
  if (is_terminal(awaited_job.state)) {
    return {.start = true,
            .retry_after = {},
            .reason = fmt::format("{}: job '{}' {} after {} steps", to_string(start), awaited_job.name,
                                  to_string(awaited_job.state), awaited_job.steps)};
  }
  const auto* at_step = std::get_if<StartAtStep>(&start);
  const bool reached = at_step != nullptr && awaited_job.steps >= at_step->step;
  return {.start = reached,
          .retry_after = {},
          .reason = reached ? fmt::format("{}: job '{}' has done {} steps", to_string(start), awaited_job.name,
                                          awaited_job.steps)
                            : std::string()};
}

void check_starts(std::span<const JobView> jobs) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    check_awaited(jobs, i);
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    std::string path = fmt::format("'{}'", jobs[i].name);
    Index next = awaited(jobs, i);
    for (std::size_t hops = 0; next && !has_started(jobs[*next]) && hops < jobs.size(); ++hops) {
      path += fmt::format(" -> '{}'", jobs[*next].name);
      if (*next == i) {
        throw std::invalid_argument(fmt::format("jobs wait for each other to start: {}", path));
      }
      next = awaited(jobs, *next);
    }
  }
}

}  // namespace torchshare
