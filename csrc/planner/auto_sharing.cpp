#include "planner/auto_sharing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace torchshare {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kWarmUpSteps = 3;      // the first of a job, not counted
constexpr double kRatioError = 0.03;    // standard error of a ratio at which a probe is over
constexpr double kProbeShare = 0.05;    // of the remaining work, at which it is over, too
constexpr double kProbeRest = 5;        // so many times its length until there may be another
constexpr std::uint64_t kFewest = 3;    // steps of each kind that a probe needs
constexpr double kShortestProbe = 0.1;  // seconds of each kind of step, unless that is too large a share
constexpr double kPatience = 2;         // times that share, for a second that hardly gets on
constexpr double kDrift = 0.10;         // change of a step's time that calls for a new plan
constexpr std::uint64_t kSteady = 8;    // steps,
constexpr double kSteadyTime = 0.5;     // and seconds of them, that show such a change
constexpr double kHysteresis = 0.03;    // a new plan must be better by that
constexpr double kStallSteps = 10;      // so many steps' time without one is a stall,
constexpr double kShortestStall = 1;    // seconds, but no less than this
constexpr double kShortestStep = 1e-9;  // seconds

void check_positive(const SharedJob& job, std::string_view what, double value) {
  if (!(value > 0 && value < kNever)) {
    throw std::invalid_argument(fmt::format("job '{}': {} is {}; expected a number above 0", job.name, what, value));
  }
}

void check(const SharedJob& job) {
  if (job.steps && !(*job.steps >= 0 && *job.steps < kNever)) {
    throw std::invalid_argument(fmt::format("job '{}': steps is {}; expected at least 0", job.name, *job.steps));
  }
  if (job.profile) {
    check_positive(job, "step time of its profile", job.profile->step);
    for (const auto& [other, ratios] : job.profile->beside) {
      check_positive(job, "ratio beside " + other, ratios.own);
      check_positive(job, "ratio of " + other, ratios.other);
    }
  }
}

/// Whether a meter need not run on: exact enough for a ratio of two, or `budget` seconds old. Steps that follow each
/// other are alike, so a few short ones look more exact than they are.
bool is_enough(const StepMeter& meter, double budget) {
  const bool exact = meter.relative_error() <= kRatioError / std::sqrt(2.0) && meter.total() >= kShortestProbe;
  return meter.count() >= kFewest && (exact || meter.total() >= budget);
}

double at_least_one(double ratio) {
  return std::max(ratio, 1.0);  // below 1 is noise
}

}  // namespace

void AutoSharing::arrive(JobId id, SharedJob job) {
  check(job);
  any_automatic_ = any_automatic_ || job.automatic;
  entries_[id].job = std::move(job);
}

void AutoSharing::start(JobId id, double now) {
  Entry& entry = entries_.at(id);
  entry.state = State::kRunning;
  entry.last_sign = now;
  change_who_runs();
}

void AutoSharing::change_who_runs() {
  ++epoch_;
  for (auto& [id, entry] : entries_) {
    entry.recent = {};
  }
}

void AutoSharing::suspend(JobId id, bool suspended) {
  entries_.at(id).suspended = suspended;
  change_who_runs();
}

void AutoSharing::end(JobId id) {
  entries_.at(id).state = State::kEnded;
  change_who_runs();
}

void AutoSharing::expect(JobId id, double steps, bool for_good) {
  Entry& entry = entries_.at(id);
  if (for_good && !entry.job.steps) {
    entry.job.steps = steps;
  }
  entry.pass_ends = steps;
}

void AutoSharing::step(JobId id, double now) {
  Entry& entry = entries_.at(id);
  ++entry.steps;
  const double period = now - entry.last_sign;
  entry.last_sign = now;
  entry.last_period = period;
  const bool whole = std::exchange(entry.epoch, epoch_) == epoch_;  // nothing changed since its last step
  if (!whole || entry.steps <= kWarmUpSteps) {
    return;
  }
  entry.recent.add(period);
  const std::vector<JobId> running = in_state(State::kRunning, State::kRunning);
  if (std::any_of(running.begin(), running.end(), [this](JobId other) { return entries_.at(other).suspended; })) {
    return;
  }
  if (running.size() == 1) {
    entry.alone.add(period);
  } else if (const auto found = running.size() == 2 ? pairs_.find({running[0], running[1]}) : pairs_.end();
             found != pairs_.end() && !found->second.let_in) {
    found->second.together[id == found->second.first ? 0 : 1].add(period);
  }
}

std::vector<AutoSharing::Order> AutoSharing::decide(double now) {
  orders_.clear();
  retry_at_ = kNever;
  if (!any_automatic_) {
    return {};
  }
  std::vector<JobId> residents = in_state(State::kRunning, State::kHeld);
  const bool one_comes = std::any_of(entries_.begin(), entries_.end(), [](const auto& known) {
    return known.second.state == State::kNotStarted && known.second.job.starts_now;
  });
  if (residents.empty() && !one_comes && !waiting().empty()) {
    residents = {waiting().front()};
    order(residents[0], true, "nothing else runs", now);
  }
  if (residents.size() == 1) {
    order(residents[0], true, "its partner has ended", now);
    for (const JobId guest : waiting()) {
      settle(pair(residents[0], guest), now);
      if (entries_.at(guest).state != State::kNotStarted) {
        break;
      }
    }
  } else if (residents.size() == 2) {
    Pair& both = pair(residents[0], residents[1]);
    if (entry(both, 1).job.automatic) {
      settle(both, now);
    }
  } else {
    for (const JobId id : residents) {
      order(id, true, fmt::format("{} jobs were started by hand", residents.size()), now);
    }
  }
  return std::move(orders_);
}

std::vector<JobId> AutoSharing::in_state(State state, State or_state) const {
  std::vector<JobId> found;
  for (const auto& [id, entry] : entries_) {
    if (entry.state == state || entry.state == or_state) {
      found.push_back(id);
    }
  }
  return found;
}

/// In the order in which they should get a place: higher ones first, then those that came first.
std::vector<JobId> AutoSharing::waiting() const {
  std::vector<JobId> found;
  for (const auto& [id, entry] : entries_) {
    if (entry.state == State::kNotStarted && entry.job.automatic) {
      found.push_back(id);
    }
  }
  std::stable_sort(found.begin(), found.end(), [this](JobId a, JobId b) {
    return outranks(entries_.at(a).job.priority, entries_.at(b).job.priority);
  });
  return found;
}

AutoSharing::Pair& AutoSharing::pair(JobId first, JobId second) {
  return pairs_.try_emplace({std::min(first, second), std::max(first, second)}, Pair{first, second}).first->second;
}

void AutoSharing::settle(Pair& pair, double now) {
  for (const int which : {0, 1}) {
    if (entry(pair, which).suspended) {
      pair.both_began = 0;
      order(which == 0 ? pair.second : pair.first, true,
            fmt::format("'{}' was suspended by hand", entry(pair, which).job.name), now);
      return;
    }
  }
  const Running wanted = choose(pair, now);
  const int sole = wanted == Running::kSecond ? 1 : 0;
  pair.let_in = wanted != Running::kBoth && stalls(entry(pair, sole), now);
  const std::string reason = pair.let_in ? fmt::format("'{}' has not ended a step for {:.3g} s",
                                                       entry(pair, sole).job.name, now - entry(pair, sole).last_sign)
                                         : pair.reason;
  const std::size_t orders = orders_.size();
  order(pair.first, wanted != Running::kSecond || pair.let_in, reason, now);
  order(pair.second, wanted != Running::kFirst || pair.let_in, reason, now);
  if (std::exchange(pair.fresh, false) && orders_.size() == orders) {
    orders_.push_back({pair.second, Action::kStay, reason});
  }
}

/// Whether the job runs without getting on: its partner may as well run meanwhile.
bool AutoSharing::stalls(const Entry& entry, double now) {
  if (entry.state != State::kRunning) {
    return false;
  }
  const double limit = std::max(kShortestStall, kStallSteps * std::max(entry.alone.mean(), entry.last_period));
  if (now - entry.last_sign < limit) {
    retry_at_ = std::min(retry_at_, entry.last_sign + limit);
    return false;
  }
  return true;
}

void AutoSharing::order(JobId id, bool run, const std::string& reason, double now) {
  Entry& entry = entries_.at(id);
  const bool runs = entry.state == State::kRunning;
  if (entry.state == State::kEnded || run == runs || (!run && entry.state != State::kRunning)) {
    return;
  }
  const Action action = !run ? Action::kHold : entry.state == State::kHeld ? Action::kRelease : Action::kStart;
  orders_.push_back({id, action, reason});
  entry.state = run ? State::kRunning : State::kHeld;
  entry.last_sign = now;
  change_who_runs();
}

AutoSharing::Running AutoSharing::choose(Pair& pair, double now) {
  if (pair.planned && changed_pace(pair)) {
    const double spent = pair.probe_ended - pair.probe_began;
    if (!max_slowdown_ && now - pair.probe_ended > kProbeRest * spent) {
      probe_again(pair, now);
    } else {
      plan(pair);
    }
  }
  if (pair.planned) {
    return pair.running;
  }
  if (pair.probed || !believe_profiles(pair)) {
    if (max_slowdown_) {
      pair.planned = true;
      pair.running = Running::kBoth;
      pair.reason = fmt::format("the bound of {:.3g} protects the primary", *max_slowdown_);
      return pair.running;
    }
    if (const auto missing = probe(pair, now)) {
      return *missing;
    }
    pair.probe_ended = now;
  }
  plan(pair);
  return pair.running;
}

bool AutoSharing::believe_profiles(Pair& pair) const {
  const auto& first = entry(pair, 0).job.profile;
  const auto& second = entry(pair, 1).job.profile;
  if (!first || !second) {
    return false;
  }
  if (const auto found = first->beside.find(second->name); found != first->beside.end()) {
    pair.ratios[0] = found->second.own;
    pair.ratios[1] = found->second.other;
  } else if (const auto other = second->beside.find(first->name); other != second->beside.end()) {
    pair.ratios[0] = other->second.other;
    pair.ratios[1] = other->second.own;
  } else {
    return false;
  }
  pair.alone[0] = first->step;
  pair.alone[1] = second->step;
  return true;
}

/// Who must run for what is not known yet; nothing once all is known, which then is in `pair`.
std::optional<AutoSharing::Running> AutoSharing::probe(Pair& pair, double now) {
  const Entry& first = entry(pair, 0);
  const Entry& second = entry(pair, 1);
  if (!std::exchange(pair.probed, true)) {
    pair.probe_began = now;
  }
  pair.alone[0] = first.alone.mean();
  pair.alone[1] = second.alone.count() > 0 ? second.alone.mean() : pair.together[1].mean();
  const double work = remaining_alone(pair, 0) + remaining_alone(pair, 1);
  const double budget = kProbeShare * work / 3;  // for each kind of step
  if (pair.probing == Running::kFirst && is_enough(first.alone, budget)) {
    pair.probing = Running::kBoth;
  }
  if (pair.probing == Running::kBoth && knows_both(pair, budget, now)) {
    pair.probing = Running::kSecond;
  }
  if (pair.probing != Running::kSecond || !is_enough(second.alone, budget)) {
    constexpr std::string_view kWhose[] = {"the first alone", "both", "the second alone"};
    pair.reason = fmt::format("probe: steps of {}", kWhose[static_cast<int>(pair.probing)]);
    return pair.probing;
  }
  pair.alone[1] = second.alone.mean();
  for (const int which : {0, 1}) {
    pair.alone[which] = std::max(pair.alone[which], kShortestStep);
    pair.ratios[which] = pair.together[which].mean() / pair.alone[which];
  }
  return std::nullopt;
}

/// A second that hardly gets a step done beside the first is not waited for: then its warm-up counts, too.
bool AutoSharing::knows_both(Pair& pair, double budget, double now) const {
  const Entry& second = entry(pair, 1);
  if (second.state != State::kRunning || second.steps == 0) {
    return false;
  }
  if (pair.both_began == 0) {
    pair.both_began = now;
    pair.both_steps = second.steps;
  }
  if (is_enough(pair.together[0], budget) && is_enough(pair.together[1], budget)) {
    return true;
  }
  const double time = now - pair.both_began;
  if (pair.together[0].count() < kFewest || pair.together[1].count() >= kFewest ||
      time < std::max(kShortestProbe, kPatience * budget)) {
    return false;
  }
  pair.together[1].add(time / std::max(1.0, second.steps - pair.both_steps));
  return true;
}

/// Takes over what the steps since the last plan show; returns whether it is another pace.
bool AutoSharing::changed_pace(Pair& pair) const {
  bool changed = false;
  for (const int which : {0, 1}) {
    const StepMeter& recent = entry(pair, which).recent;
    if (pair.let_in || pair.assumed[which] == 0 || recent.count() < kSteady || recent.total() < kSteadyTime ||
        std::abs(recent.mean() / pair.assumed[which] - 1) <= kDrift + 2 * recent.relative_error()) {
      continue;
    }
    changed = true;
    if (pair.running == Running::kBoth) {
      pair.ratios[which] = recent.mean() / pair.alone[which];
    } else {
      pair.alone[which] = recent.mean();
    }
  }
  return changed;
}

/// What was measured is of another pace. Beside the other, a job's time alone cannot be told from its ratio.
void AutoSharing::probe_again(Pair& pair, double now) {
  pair.planned = false;
  pair.probed = true;
  pair.probing = pair.running == Running::kSecond ? Running::kBoth : Running::kFirst;
  pair.both_began = 0;
  pair.probe_began = now;
  pair.together[0] = pair.together[1] = {};
  for (const int which : {0, 1}) {
    if (pair.assumed[which] != 0) {
      Entry& ran = entry(pair, which);
      ran.alone = pair.running == Running::kBoth ? StepMeter() : ran.recent;
    }
  }
}

void AutoSharing::plan(Pair& pair) {
  PlannedJob jobs[2];
  for (const int which : {0, 1}) {
    jobs[which].name = entry(pair, which).job.name;
    jobs[which].time.alpha = pair.alone[which];
    jobs[which].remaining_steps = remaining_alone(pair, which) / pair.alone[which];
    jobs[which].ratios = {at_least_one(pair.ratios[which])};
  }
  if (max_slowdown_ && jobs[0].ratios[0] > 1 + *max_slowdown_) {
    // The first is held to its bound by letting the second run for a share of the time.
    const double share = std::max(*max_slowdown_, 1e-6) / (jobs[0].ratios[0] - 1);
    jobs[0].ratios[0] = 1 + *max_slowdown_;
    jobs[1].ratios[0] /= share;
  }
  const bool bounded = !outranks(entry(pair, 1).job.priority, entry(pair, 0).job.priority);
  const Plan plan = plan_pair(jobs[1], jobs[0], {.max_slowdown = bounded ? max_slowdown_ : std::nullopt});
  Running running = plan.start == PlannedStart::kNow     ? Running::kBoth
                    : plan.start == PlannedStart::kFirst ? Running::kSecond
                                                         : Running::kFirst;
  constexpr PlannedStart kStarts[] = {PlannedStart::kAfter, PlannedStart::kNow, PlannedStart::kFirst};
  const double staying = plan.average_of(kStarts[static_cast<int>(pair.running)]);
  const double waiting = plan.average_of(PlannedStart::kAfter);
  if (bounded && waiting <= plan.average() * (1 + kHysteresis)) {
    running = Running::kFirst;  // a higher job is not disturbed for next to nothing
  }
  pair.fresh = true;
  if (std::exchange(pair.planned, true) && staying <= plan.average() * (1 + kHysteresis)) {
    running = pair.running;
  }
  pair.running = running;
  pair.assumed[0] = running == Running::kSecond ? 0 : pair.alone[0] * (running == Running::kBoth ? pair.ratios[0] : 1);
  pair.assumed[1] = running == Running::kFirst ? 0 : pair.alone[1] * (running == Running::kBoth ? pair.ratios[1] : 1);
  for (const int which : {0, 1}) {
    entry(pair, which).recent = {};
  }
  pair.reason =
      fmt::format("ratios {:.3g} and {:.3g}; {}", pair.ratios[0], pair.ratios[1], fmt::join(plan.reasons, "; "));
}

std::optional<double> AutoSharing::remaining_steps(const Entry& entry) const {
  if (entry.job.steps) {
    return std::max(0.0, *entry.job.steps - entry.steps);
  }
  if (entry.pass_ends) {
    // Nobody said how many passes there will be: expect as much again as there was.
    return std::max(*entry.pass_ends - entry.steps, entry.steps);
  }
  return std::nullopt;
}

/// Seconds; where nobody knows, as much as the other's.
double AutoSharing::remaining_alone(const Pair& pair, int which) const {
  constexpr double kAnyTime = 60;
  if (const auto own = remaining_steps(entry(pair, which))) {
    return *own * pair.alone[which];
  }
  const auto other = remaining_steps(entry(pair, 1 - which));
  return other ? *other * pair.alone[1 - which] : kAnyTime;
}

}  // namespace torchshare
