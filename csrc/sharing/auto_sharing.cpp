#include "sharing/auto_sharing.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace torchshare {
namespace {

constexpr double kWarmUpSteps = 3;     // first steps of a job, not measured
constexpr double kStallSteps = 10;     // a job stalls if it ends no step for the time of this many steps,
constexpr Seconds kShortestStall = 1;  // and for at least this long

void check_positive(const SharedJob& job, std::string_view what, double value) {
  if (!(value > 0 && value < kNeverVirtual)) {
    throw std::invalid_argument(fmt::format("job '{}': {} must be a positive number, got {}", job.name, what, value));
  }
}

}  // namespace

void AutoSharing::check(const SharedJob& job) {
  if (job.steps && !(*job.steps >= 0 && *job.steps < kNeverVirtual)) {
    throw std::invalid_argument(fmt::format("job '{}': steps must be at least 0, got {}", job.name, *job.steps));
  }
  if (job.profile) {
    check_positive(job, "step time of its profile", job.profile->step);
    for (const auto& [other, ratios] : job.profile->beside) {
      check_positive(job, "ratio beside " + other, ratios.own);
      check_positive(job, "ratio of " + other, ratios.other);
    }
  }
}

void AutoSharing::arrive(JobId id, SharedJob job) {
  check(job);
  any_automatic_ = any_automatic_ || job.automatic;
  SharedRun& run = runs_[id];
  run.answers = job.profile && job.profile->answers;
  run.job = std::move(job);
}

void AutoSharing::start(JobId id, std::chrono::nanoseconds now) {
  SharedRun& run = runs_.at(id);
  run.state = State::kRunning;
  run.last_sign = now;
  change_who_runs();
}

void AutoSharing::change_who_runs() {
  ++epoch_;
  for (auto& [id, run] : runs_) {
    run.recent = {};
  }
}

void AutoSharing::suspend(JobId id, bool suspended, std::chrono::nanoseconds now) {
  SharedRun& run = runs_.at(id);
  run.suspended = suspended;
  run.last_sign = now;
  change_who_runs();
}

void AutoSharing::end(JobId id) {
  std::erase_if(pairs_, [id](const auto& known) { return known.first.first == id || known.first.second == id; });
  runs_.erase(id);
  change_who_runs();
}

void AutoSharing::go_on(JobId id, double steps) {
  SharedRun& run = runs_.at(id);
  if (run.job.steps) {
    *run.job.steps = std::max(0.0, *run.job.steps - steps);
  }
}

void AutoSharing::expect(JobId id, double steps, bool for_good) {
  SharedRun& run = runs_.at(id);
  if (for_good && !run.job.steps) {
    run.job.steps = steps;
  }
  run.pass_ends = steps;
}

void AutoSharing::step(JobId id, std::chrono::nanoseconds now) {
  SharedRun& run = runs_.at(id);
  ++run.steps;
  const Seconds period = to_seconds(now - run.last_sign);
  run.last_sign = now;
  run.last_period = period;
  const bool whole = std::exchange(run.epoch, epoch_) == epoch_;  // the same jobs ran during the whole step
  if (!whole || run.steps <= kWarmUpSteps) {
    return;
  }
  const std::vector<JobId> running = in_state(State::kRunning, State::kRunning);
  const auto found = running.size() == 2 ? pairs_.find({running[0], running[1]}) : pairs_.end();
  const bool as_chosen = found == pairs_.end() || !found->second.let_in;
  if (!as_chosen ||
      std::any_of(running.begin(), running.end(), [this](JobId other) { return runs_.at(other).suspended; })) {
    return;
  }
  run.recent.add(period);
  if (running.size() == 1) {
    run.alone.add(period);
  } else if (found != pairs_.end()) {
    found->second.sharing.step_together(run, period);
  }
}

void AutoSharing::answer(JobId id, std::chrono::nanoseconds now) {
  SharedRun& run = runs_.at(id);
  run.answers = true;
  run.last_period = to_seconds(now - std::exchange(run.last_sign, now));
}

AutoSharing::Orders AutoSharing::decide(std::chrono::nanoseconds now, std::size_t places) {
  retry_at_ = kNever;
  if (!any_automatic_) {
    return {};
  }
  std::vector<JobId> residents = in_state(State::kRunning, State::kHeld);
  const bool one_comes = std::any_of(runs_.begin(), runs_.end(), [](const auto& known) {
    return known.second.state == State::kNotStarted && known.second.job.starts_now;
  });
  if (places > 0 && residents.empty() && !one_comes && !waiting().empty()) {
    --places;
    residents = {waiting().front()};
    order(residents[0], true, "nothing else runs", now);
  }
  if (residents.size() == 1) {
    order(residents[0], true, "its partner has ended", now);
    for (const JobId guest : places > 0 ? waiting() : std::vector<JobId>()) {
      settle(pair(residents[0], guest), now);
      if (runs_.at(guest).state != State::kNotStarted) {
        break;
      }
    }
  } else if (residents.size() == 2) {
    Pair& both = pair(residents[0], residents[1]);
    if (runs_.at(both.second).job.automatic) {
      settle(both, now);
    }
  } else {
    for (const JobId id : residents) {
      order(id, true, fmt::format("{} jobs were started by hand", residents.size()), now);
    }
  }
  return std::exchange(orders_, {});
}

std::vector<JobId> AutoSharing::in_state(State state, State or_state) const {
  std::vector<JobId> found;
  for (const auto& [id, run] : runs_) {
    if (run.state == state || run.state == or_state) {
      found.push_back(id);
    }
  }
  return found;
}

/// Waiting jobs in order of priority, then deadline, then arrival.
std::vector<JobId> AutoSharing::waiting() const {
  std::vector<JobId> found;
  for (const auto& [id, run] : runs_) {
    if (run.state == State::kNotStarted && run.job.automatic) {
      found.push_back(id);
    }
  }
  std::stable_sort(found.begin(), found.end(), [this](JobId a, JobId b) {
    const SharedJob& first = runs_.at(a).job;
    const SharedJob& second = runs_.at(b).job;
    return outranks(first.priority, second.priority) ||
           (!outranks(second.priority, first.priority) &&
            first.ends_by.value_or(kNever) < second.ends_by.value_or(kNever));
  });
  return found;
}

AutoSharing::Pair& AutoSharing::pair(JobId first, JobId second) {
  const std::pair key{std::min(first, second), std::max(first, second)};
  if (const auto found = pairs_.find(key); found != pairs_.end()) {
    return found->second;
  }
  return pairs_.emplace(key, Pair{first, second, {runs_.at(first), runs_.at(second), max_slowdown_}}).first->second;
}

void AutoSharing::settle(Pair& pair, std::chrono::nanoseconds now) {
  for (const JobId id : {pair.first, pair.second}) {
    if (runs_.at(id).suspended) {
      pair.sharing.pause();
      order(id == pair.first ? pair.second : pair.first, true,
            fmt::format("'{}' was suspended by hand", runs_.at(id).job.name), now);
      return;
    }
  }
  using Running = PairSharing::Running;
  const Running wanted = pair.sharing.choose(now);
  retry_at_ = std::min(retry_at_, pair.sharing.plan_again_at());
  const SharedRun& sole = runs_.at(wanted == Running::kSecond ? pair.second : pair.first);
  pair.let_in = wanted != Running::kBoth && stalls(sole, now);
  const std::string reason =
      pair.let_in ? fmt::format("'{}' has not {} for {:.3g} s", sole.job.name,
                                sole.answers ? "answered a request" : "ended a step", to_seconds(now - sole.last_sign))
                  : pair.sharing.reason();
  const std::size_t orders = orders_.size();
  order(pair.first, wanted != Running::kSecond || pair.let_in, reason, now);
  order(pair.second, wanted != Running::kFirst || pair.let_in, reason, now);
  if (pair.sharing.take_fresh_plan() && orders_.size() == orders) {
    orders_.push_back({pair.second, Action::kStay, "auto: " + reason});
  }
}

/// True if the job runs without progress, so that its partner may run.
bool AutoSharing::stalls(const SharedRun& run, std::chrono::nanoseconds now) {
  if (run.state != State::kRunning) {
    return false;
  }
  const auto limit = from_seconds(std::max(kShortestStall, kStallSteps * std::max(run.alone.mean(), run.last_period)));
  if (now - run.last_sign < limit) {
    retry_at_ = std::min(retry_at_, run.last_sign + limit);
    return false;
  }
  return true;
}

void AutoSharing::order(JobId id, bool wanted, const std::string& reason, std::chrono::nanoseconds now) {
  SharedRun& run = runs_.at(id);
  const bool runs = run.state == State::kRunning;
  if (wanted == runs || (!wanted && !runs)) {
    return;
  }
  const Action action = !wanted ? Action::kHold : run.state == State::kHeld ? Action::kRelease : Action::kStart;
  orders_.push_back({id, action, "auto: " + reason});
  run.state = wanted ? State::kRunning : State::kHeld;
  run.last_sign = now;
  change_who_runs();
}

}  // namespace torchshare
