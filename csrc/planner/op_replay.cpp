#include "planner/op_replay.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "model/time.h"

namespace torchshare {
namespace {

using std::chrono::nanoseconds;

constexpr double kMinRate = 0.003;  // of a SCHED_IDLE thread beside an ordinary one: its weight is 3 of 1024
constexpr std::uint64_t kRoundsPerPoll = 4096;
constexpr double kDone = 0.5;  // ns; smaller amounts are rounding errors

nanoseconds whole(double time) {
  return nanoseconds(static_cast<std::int64_t>(time));
}

double count(nanoseconds time) {
  return static_cast<double>(time.count());
}

}  // namespace

OpReplay::OpReplay(std::vector<ReplayJob> jobs, std::unique_ptr<GatePolicy> policy, const ReplayOptions& options)
    : policy_(std::move(policy)), options_(options) {
  if (options.cores < 1) {
    throw std::invalid_argument("replay needs at least 1 core");
  }
  for (ReplayJob& job : jobs) {
    if (job.trace.ops.empty() || job.threads < 1) {
      throw std::invalid_argument("replay needs at least 1 op and 1 thread per job");
    }
    states_.push_back({.job = std::move(job)});
  }
  if (states_.empty()) {
    throw std::invalid_argument("replay needs at least 1 job");
  }
  for (State& state : states_) {
    learn(state);
  }
}

void OpReplay::learn(State& state) {
  const auto& ops = state.job.trace.ops;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    Expected& expected = state.expected[ops[i].context];
    expected.duration.add(ops[i].duration);
    if (i + 1 < ops.size()) {
      expected.gap.add(ops[i + 1].gap);
    }
  }
}

std::vector<Replayed> OpReplay::run(const std::function<void()>& poll) {
  Time now = 0;
  for (State& state : states_) {
    state.release = state.job.first_release;
    begin_gap(state, now);
  }
  while (!has_ended(now)) {
    settle(now, poll);
    const std::vector<double> rates = this->rates();
    Time next = kNeverVirtual;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const State& state = states_[i];
      if (rates[i] > 0) {
        next = std::min(next, now + state.left / rates[i]);
      } else {
        next = std::min(next, state.asks_at);
      }
    }
    for (std::size_t i = 0; i < states_.size(); ++i) {
      State& state = states_[i];
      // Exactly 0 at its end: far from the beginning, the time that is left may be less than a rounding error of `now`.
      const bool ends = rates[i] > 0 && now + state.left / rates[i] <= next;
      state.left = ends ? 0 : state.left - rates[i] * (next - now);
    }
    now = next;
  }
  std::vector<Replayed> done;
  for (State& state : states_) {
    done.push_back(std::move(state.done));
  }
  return done;
}

/// Progress per time of each job's phase; 0: it waits.
std::vector<double> OpReplay::rates() const {
  const auto demand = [](const State& state) -> double {
    if (state.phase == Phase::kInside) {
      return state.job.threads;
    }
    return state.phase == Phase::kPython && state.has_lock ? 1 : 0;
  };
  const auto comes_first = [&](const State& state) {
    return options_.device_priority && state.job.priority == Priority::kPrimary;
  };
  double first = 0;
  double rest = 0;
  for (const State& state : states_) {
    (comes_first(state) ? first : rest) += demand(state);
  }
  const double cores = options_.cores;
  const double first_rate = first > 0 ? std::min(1.0, cores / first) : 1;
  const double rest_rate = rest > 0 ? std::clamp((cores - first * first_rate) / rest, kMinRate, 1.0) : 1;
  std::vector<double> rates;
  for (const State& state : states_) {
    const bool idle = state.phase == Phase::kIdle;
    rates.push_back(idle ? 1 : demand(state) > 0 ? (comes_first(state) ? first_rate : rest_rate) : 0);
  }
  return rates;
}

bool OpReplay::has_ended(Time now) const {
  const State& first = states_.front();
  return options_.until ? now >= count(*options_.until) : first.done.ops >= first.job.trace.ops.size();
}

void OpReplay::end_unit(State& state, Time now) {
  state.in_unit = false;
  for (State& other : states_) {
    other.record.delay(whole(now - state.unit_began));
  }
  state.done.units.push_back({state.release, whole(now)});
  state.release += state.job.task->period;
}

void OpReplay::begin_gap(State& state, Time now) {
  const OpTrace::Op& next = op_of(state);
  state.left_op_at = now;
  // Assumes input first, then Python: the trace does not record their order.
  const Time until_release = state.job.task && !state.in_unit ? std::max(0.0, count(state.release) - now) : 0;
  const Time idle = next.idle + until_release;
  if (idle > 0) {
    state.phase = Phase::kIdle;
    state.left = idle;
  } else {
    begin_python(state, now);
  }
  if (idle > 0 || forecast(state).mean.count() > 0) {
    for (State& other : states_) {
      if (other.phase == Phase::kAtGate) {
        other.asks_at = std::min(other.asks_at, now + count(options_.wake_latency));
      }
    }
  }
}

void OpReplay::begin_python(State& state, Time now) {
  if (state.job.task && !std::exchange(state.in_unit, true)) {
    state.unit_began = now;
  }
  state.phase = Phase::kPython;
  state.left = op_of(state).gap - op_of(state).idle;
  state.arrived = state.asks_at = now;
}

/// The forecast of the gap after its last op, as it would be announced to the gate.
GapForecast OpReplay::forecast(const State& state) const {
  const std::size_t before = state.op == 0 ? state.job.trace.ops.size() - 1 : state.op - 1;
  const OpTime& gap = state.expected.at(state.job.trace.ops[before].context).gap;
  const bool opens = policy_->forecasts() && gap.known() && gap.mean >= count(options_.shortest_gap);
  return opens ? GapForecast{whole(gap.mean), whole(gap.spread)} : GapForecast{};
}

/// Advances jobs at this instant until none can advance.
void OpReplay::settle(Time now, const std::function<void()>& poll) {
  bool moved = true;
  while (moved && !has_ended(now)) {
    if (++rounds_ % kRoundsPerPoll == 0) {
      poll();
    }
    moved = false;
    for (State& state : states_) {
      moved |= advance(state, now);
    }
  }
}

bool OpReplay::advance(State& state, Time now) {
  switch (state.phase) {
    case Phase::kIdle:
      if (state.left > kDone) {
        return false;
      }
      begin_python(state, now);
      return true;
    case Phase::kPython:
      if (!state.has_lock) {
        return take_lock(state, now);
      }
      if (state.left > kDone) {
        return false;
      }
      state.has_lock = false;  // ops run without the GIL
      state.phase = Phase::kAtGate;
      state.arrived = state.asks_at = now;
      return true;
    case Phase::kAtGate:
      return now >= state.asks_at - kDone && ask(state, now);
    case Phase::kInside:
      if (state.left > kDone) {
        return false;
      }
      ++state.activity;
      ++state.done.ops;
      ++state.op;
      if (const auto& ends = state.job.trace.step_ends; state.step < ends.size() && state.op >= ends[state.step]) {
        state.done.step_ends.push_back(now);
        ++state.step;
      }
      if (state.op == state.job.trace.ops.size()) {
        state.op = state.step = 0;
        if (state.job.task) {
          end_unit(state, now);
        }
      }
      begin_gap(state, now);
      return true;
  }
  return false;
}

bool OpReplay::take_lock(State& state, Time now) {
  const auto holder = std::find_if(states_.begin(), states_.end(), [](const State& other) { return other.has_lock; });
  if (holder != states_.end()) {
    const Time handed_over = std::max(state.arrived, holder->arrived) + count(options_.switch_interval);
    if (now < handed_over - kDone) {
      state.asks_at = handed_over;
      return false;
    }
    holder->has_lock = false;
    holder->arrived = now;
  }
  state.has_lock = true;
  state.arrived = now;
  return true;
}

JobSnapshot OpReplay::snapshot(const State& state) const {
  JobSnapshot seen{.activity = state.activity,
                   .inside = state.phase == Phase::kInside,
                   .idle = state.phase == Phase::kIdle,
                   .kind = op_of(state).kind,
                   .job = static_cast<std::uint64_t>(&state - states_.data())};
  if (state.in_unit) {
    seen.unit.deadline = state.release + state.job.task->deadline;
  } else if (state.job.task) {
    seen.unit.release = state.release + options_.blocking_allowed;
  }
  if (policy_->forecasts()) {
    seen.gap = seen.inside ? GapForecast{} : forecast(state);
    seen.left_at = whole(state.left_op_at);
    const OpTime& next = state.expected.at(op_of(state).context).duration;
    seen.op = next.known() ? std::optional(whole(next.mean + next.spread)) : std::nullopt;
  }
  return seen;
}

bool OpReplay::ask(State& state, Time now) {
  const auto standing = [](const State& each) { return Standing(each.job.priority, each.job.task.has_value()); };
  Admission admission(*policy_, standing(state), whole(now));
  for (State& other : states_) {
    if (&other != &state && admission.regards(standing(other))) {
      admission.add(standing(other), other.record, snapshot(other));
    }
  }
  const JobSnapshot self = snapshot(state);
  const Verdict verdict = admission.decide(state.record, self, whole(now - state.arrived));
  if (!verdict.admit) {
    state.record.waits = true;
    state.asks_at = now + count(verdict.retry_after);
    return false;
  }
  state.record.admit(whole(now), verdict, self.op);
  state.done.waited += whole(now - state.arrived);
  ++state.activity;
  state.phase = Phase::kInside;
  state.left = op_of(state).duration;
  return true;
}

}  // namespace torchshare
