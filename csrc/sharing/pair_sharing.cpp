#include "sharing/pair_sharing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "planner/pair_planner.h"

namespace torchshare {
namespace {

constexpr double kRatioError = 0.03;         // standard error of a ratio at which a probe is over
constexpr double kProbeShare = 0.05;         // maximum cost of a probe / remaining work
constexpr double kProbeRest = 5;             // pause after a probe / length of the probe
constexpr std::uint64_t kMinProbeSteps = 3;  // steps of each kind that a probe needs
constexpr Seconds kShortestProbe = 0.1;      // time per kind of step, if kProbeShare allows it
constexpr double kStarvedFactor = 2;         // factor on a probe's budget if the second job makes little progress
constexpr double kDrift = 0.10;              // relative change of step time that triggers a new plan
constexpr std::uint64_t kSteady = 8;         // a change must show in this many steps
constexpr Seconds kSteadyTime = 0.5;         // and for this long
constexpr std::uint64_t kMany = 64;          // enough to outvote a slow phase of the machine
constexpr double kHysteresis = 0.03;         // a new plan must be better by this fraction
constexpr Seconds kShortestStep = 1e-9;
// Deadlines. Step times are known to a few percent; the error shrinks as the deadline comes nearer.
constexpr double kDeadlineMargin = 0.05;  // of the time left: jobs are planned to end earlier by it
constexpr double kPlanAgain = 0.05;       // of the time left, until the next plan
constexpr Seconds kShortestPlan = 0.1;
constexpr Seconds kSoon = 1e-3;
constexpr Seconds kLongestPlan = 1e6;

/// True if a meter has measured enough: precisely enough for a ratio of two, or for a time of `budget`. Consecutive
/// steps are correlated, so a few short ones look more precise than they are.
bool is_enough(const StepMeter& meter, Seconds budget) {
  const bool exact = meter.relative_error() <= kRatioError / std::sqrt(2.0) && meter.total() >= kShortestProbe;
  return meter.count() >= kMinProbeSteps && (exact || meter.total() >= budget);
}

double at_least_one(double ratio) {
  return std::max(ratio, 1.0);  // below 1 is noise
}

std::optional<double> remaining_steps(const SharedRun& run) {
  if (run.job.steps) {
    return std::max(0.0, *run.job.steps - run.steps);
  }
  if (run.pass_ends) {
    // The number of passes is unknown: assume as much remaining work as was done so far.
    return std::max(*run.pass_ends - run.steps, run.steps);
  }
  return std::nullopt;
}

}  // namespace

void PairSharing::step_together(const SharedRun& job, Seconds period) {
  together_[&job == runs_[0] ? 0 : 1].add(period);
}

void PairSharing::pause() {
  both_began_.reset();
}

PairSharing::Running PairSharing::choose(std::chrono::nanoseconds now) {
  if (runs_[0]->answers || runs_[1]->answers) {
    plan_again_at_ = kNever;
    return beside_requests();
  }
  if (planned_ && changed_step_time()) {
    const auto spent = probe_ended_ - probe_began_;
    if (!max_slowdown_ && now - probe_ended_ > kProbeRest * spent) {
      probe_again(now);
    } else {
      plan(now);
    }
  } else if (now >= plan_again_at_) {
    plan_again(now);
  }
  if (planned_) {
    return running_;
  }
  if (probed_ || !believe_profiles()) {
    if (max_slowdown_) {
      planned_ = true;
      running_ = Running::kBoth;
      reason_ = fmt::format("the bound of {:.3g} protects the primary", *max_slowdown_);
      return running_;
    }
    if (const auto missing = probe(now)) {
      return *missing;
    }
    probe_ended_ = now;
  }
  plan(now);
  return running_;
}

PairSharing::Running PairSharing::beside_requests() {
  const int higher = outranks(runs_[1]->job.priority, runs_[0]->job.priority) ? 1 : 0;
  const int answering = runs_[higher]->answers ? higher : 1 - higher;
  const SharedJob& server = runs_[answering]->job;
  const SharedJob& other = runs_[1 - answering]->job;
  std::optional<double> share;
  if (outranks(server.priority, other.priority) && server.profile && other.profile) {
    const auto found = server.profile->beside.find(other.profile->name);
    share = found == server.profile->beside.end() ? std::nullopt : found->second.share;
  }
  const std::string reason =
      !share        ? fmt::format("'{}' answers requests; '{}' runs beside it", server.name, other.name)
      : *share == 0 ? fmt::format("'{}' keeps its promise beside no share of '{}'", server.name, other.name)
                    : fmt::format("'{}' keeps its promise while '{}' runs for {:.3g} % of the time", server.name,
                                  other.name, 100 * *share);
  fresh_ = fresh_ || reason != reason_;
  reason_ = reason;
  return share != 0.0 ? Running::kBoth : higher == 0 ? Running::kFirst : Running::kSecond;
}

bool PairSharing::believe_profiles() {
  const auto& first = runs_[0]->job.profile;
  const auto& second = runs_[1]->job.profile;
  if (!first || !second) {
    return false;
  }
  if (const auto found = first->beside.find(second->name); found != first->beside.end()) {
    ratios_[0] = found->second.own;
    ratios_[1] = found->second.other;
  } else if (const auto other = second->beside.find(first->name); other != second->beside.end()) {
    ratios_[0] = other->second.other;
    ratios_[1] = other->second.own;
  } else {
    return false;
  }
  alone_[0] = first->step;
  alone_[1] = second->step;
  return true;
}

/// The jobs that must run to measure what is missing; empty once everything is measured.
std::optional<PairSharing::Running> PairSharing::probe(std::chrono::nanoseconds now) {
  const SharedRun& first = *runs_[0];
  const SharedRun& second = *runs_[1];
  if (!std::exchange(probed_, true)) {
    probe_began_ = now;
  }
  alone_[0] = first.alone.mean();
  alone_[1] = second.alone.count() > 0 ? second.alone.mean() : together_[1].mean();
  const Seconds work = remaining_alone(0) + remaining_alone(1);
  const Seconds budget = kProbeShare * work / 3;  // for each kind of step
  if (probing_ == Running::kFirst && is_enough(first.alone, budget)) {
    probing_ = Running::kBoth;
  }
  if (probing_ == Running::kBoth && knows_both(budget, now)) {
    probing_ = Running::kSecond;
  }
  const bool ends_probe = is_enough(second.alone, budget) || !may_wait(0, kMinProbeSteps * alone_[1] + budget, now);
  if (probing_ != Running::kSecond || !ends_probe) {
    constexpr std::string_view kWhose[] = {"the first alone", "both", "the second alone"};
    reason_ = fmt::format("probe: steps of {}", kWhose[static_cast<int>(probing_)]);
    return probing_;
  }
  for (const int which : {0, 1}) {
    alone_[which] = std::max(alone_[which], kShortestStep);
    ratios_[which] = together_[which].mean() / alone_[which];
  }
  return std::nullopt;
}

/// If the second job makes almost no progress beside the first, its warm-up steps count as well.
bool PairSharing::knows_both(Seconds budget, std::chrono::nanoseconds now) {
  const SharedRun& second = *runs_[1];
  if (second.state != SharedRun::State::kRunning || second.steps == 0) {
    return false;
  }
  if (!both_began_) {
    both_began_ = now;
    both_steps_ = second.steps;
  }
  if (is_enough(together_[0], budget) && is_enough(together_[1], budget)) {
    return true;
  }
  const Seconds time = to_seconds(now - *both_began_);
  if (together_[0].count() < kMinProbeSteps || together_[1].count() >= kMinProbeSteps ||
      time < std::max(kShortestProbe, kStarvedFactor * budget)) {
    return false;
  }
  together_[1].add(time / std::max(1.0, second.steps - both_steps_));
  return true;
}

/// Updates the step times from the steps since the last plan; returns whether a step time has changed.
bool PairSharing::changed_step_time() {
  bool changed = false;
  for (const int which : {0, 1}) {
    StepMeter& recent = runs_[which]->recent;
    if (assumed_[which] == 0 || recent.count() < kSteady || recent.total() < kSteadyTime) {
      continue;
    }
    const double error = 2 * recent.relative_error();
    if (std::abs(recent.mean() / assumed_[which] - 1) <= kDrift + error) {
      if (error < kDrift / 2 && recent.count() >= kMany) {
        recent.forget_half();  // later steps need not outweigh all of these, but a few are still no change
      }
      continue;
    }
    changed = true;
    if (running_ == Running::kBoth) {
      ratios_[which] = recent.mean() / alone_[which];
    } else {
      alone_[which] = recent.mean();
    }
  }
  return changed;
}

/// Starts a new probe: the measurements are out of date, and while both run, a change of the step time alone cannot be
/// distinguished from a change of the ratio.
void PairSharing::probe_again(std::chrono::nanoseconds now) {
  planned_ = false;
  plan_again_at_ = kNever;
  probed_ = true;
  probing_ = running_ == Running::kSecond ? Running::kBoth : Running::kFirst;
  both_began_.reset();
  probe_began_ = now;
  together_[0] = together_[1] = {};
  for (const int which : {0, 1}) {
    if (assumed_[which] != 0) {
      SharedRun& ran = *runs_[which];
      ran.alone = running_ == Running::kBoth ? StepMeter() : ran.recent;
    }
  }
}

void PairSharing::plan(std::chrono::nanoseconds now) {
  plan_again(now);
  fresh_ = true;
  for (SharedRun* const run : runs_) {
    run->recent = {};
  }
}

/// With the measurements of the last plan, because time has passed.
void PairSharing::plan_again(std::chrono::nanoseconds now) {
  PlannedJob jobs[2];
  Seconds next = kNeverVirtual;
  for (const int which : {0, 1}) {
    jobs[which].name = runs_[which]->job.name;
    jobs[which].time.alpha = alone_[which];
    jobs[which].remaining_steps = std::max(0.0, remaining_alone(which) / alone_[which] - step_begun(which, now));
    jobs[which].ratios = {at_least_one(ratios_[which])};
    // A deadline that the job would miss even alone is ignored, so that it delays nobody else.
    if (const Seconds left = time_left(which, now); left < kNeverVirtual && left >= jobs[which].alone(0)) {
      jobs[which].deadline = left * (1 - kDeadlineMargin);
      next = std::min(next, std::max(kPlanAgain * left, kShortestPlan));
    }
  }
  if (max_slowdown_ && jobs[0].ratios[0] > 1 + *max_slowdown_) {
    // SlowdownBound keeps the first within its bound by limiting the time in which the second may run.
    const double share = std::max(*max_slowdown_, 1e-6) / (jobs[0].ratios[0] - 1);
    jobs[0].ratios[0] = 1 + *max_slowdown_;
    jobs[1].ratios[0] /= share;
  }
  const bool bounded = !outranks(runs_[1]->job.priority, runs_[0]->job.priority);
  const Plan plan = plan_pair(jobs[1], jobs[0], {.max_slowdown = bounded ? max_slowdown_ : std::nullopt});
  Running running = plan.start == PlannedStart::kNow     ? Running::kBoth
                    : plan.start == PlannedStart::kFirst ? Running::kSecond
                                                         : Running::kFirst;
  constexpr PlannedStart kStarts[] = {PlannedStart::kAfter, PlannedStart::kNow, PlannedStart::kFirst};
  const PlanCost& staying = plan.cost_of(kStarts[static_cast<int>(running_)]);
  const PlanCost& waiting = plan.cost_of(PlannedStart::kAfter);
  if (bounded && waiting.is_near(plan.cost(), kHysteresis)) {
    running = Running::kFirst;  // does not slow down a higher job for a small gain
  }
  if (std::exchange(planned_, true) && staying.is_near(plan.cost(), kHysteresis)) {
    running = running_;
  }
  next = plan.start == PlannedStart::kAtStep ? std::min(next, plan.start_in) : next;
  plan_again_at_ = next < kNeverVirtual ? now + from_seconds(std::clamp(next, kSoon, kLongestPlan)) : kNever;
  running_ = running;
  assumed_[0] = running == Running::kSecond ? 0 : alone_[0] * (running == Running::kBoth ? ratios_[0] : 1);
  assumed_[1] = running == Running::kFirst ? 0 : alone_[1] * (running == Running::kBoth ? ratios_[1] : 1);
  reason_ =
      fmt::format("ratios {:.3g} and {:.3g}{}; {}", ratios_[0], ratios_[1],
                  jobs[0].deadline || jobs[1].deadline ? ", deadlines 5 % earlier" : "", fmt::join(plan.reasons, "; "));
}

/// The part of its present step that is done, if it runs as planned.
double PairSharing::step_begun(int which, std::chrono::nanoseconds now) const {
  const Seconds begun = to_seconds(now - runs_[which]->last_sign);
  return assumed_[which] > 0 ? std::clamp(begun / assumed_[which], 0.0, 1.0) : 0.0;
}

/// To its deadline; infinite if it has none, or if the number of its steps is not known.
Seconds PairSharing::time_left(int which, std::chrono::nanoseconds now) const {
  const SharedJob& job = runs_[which]->job;
  return job.ends_by && job.steps ? to_seconds(*job.ends_by - now) : kNeverVirtual;
}

/// Whether it keeps its deadline if others run for so long.
bool PairSharing::may_wait(int which, Seconds time, std::chrono::nanoseconds now) const {
  return time_left(which, now) * (1 - kDeadlineMargin) - remaining_alone(which) >= time;
}

/// If unknown, equal to the other job's.
Seconds PairSharing::remaining_alone(int which) const {
  constexpr Seconds kAnyTime = 60;
  if (const auto own = remaining_steps(*runs_[which])) {
    return *own * alone_[which];
  }
  const auto other = remaining_steps(*runs_[1 - which]);
  return other ? *other * alone_[1 - which] : kAnyTime;
}

}  // namespace torchshare
