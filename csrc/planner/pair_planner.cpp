#include "planner/pair_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "model/pair.h"

namespace torchshare {
namespace {

constexpr double kTolerance = 1e-12;  // relative; for starts computed to meet a bound exactly

void check_number(const PlannedJob& job, std::string_view what, double value, double least) {
  if (!(value >= least && value < std::numeric_limits<double>::infinity())) {
    throw std::invalid_argument(
        fmt::format("job '{}': {} must be a finite number >= {}, got {}", job.name, what, least, value));
  }
}

/// Two jobs: their remaining times alone, and their slowdowns while they share.
struct Pair {
  PairJob new_job;
  PairJob running;

  /// The start with which the running job ends at `deadline`, if the new one ends later.
  double start_for_running(double deadline) const {
    return (running.ratio * running.remaining - deadline) / (running.ratio - 1);
  }
  /// The starts with which the new job ends at `deadline`: if it ends first, and if the running one does.
  std::array<double, 2> starts_for_new(double deadline) const {
    const double lost = running.ratio * (1 - 1 / new_job.ratio);  // by the new job, per second of the other's work
    return {deadline - new_job.ratio * new_job.remaining,
            (deadline - new_job.remaining - lost * running.remaining) / (1 - lost)};
  }
};

/// The starts at which the slope of the average completion time or of the lateness changes, within [0, the end of the
/// running job].
std::vector<double> starts_to_try(const Pair& pair, const PlannedJob& new_job, const PlannedJob& running,
                                  const PlanOptions& options) {
  const double end = pair.running.remaining;
  std::vector<double> starts{0, end};
  starts.push_back(end - pair.new_job.ratio * pair.new_job.remaining / pair.running.ratio);  // both end together
  if (options.max_slowdown) {
    starts.push_back(pair.start_for_running((1 + *options.max_slowdown) * end));
  }
  if (running.deadline) {
    starts.push_back(pair.start_for_running(*running.deadline));
  }
  if (new_job.deadline) {
    const auto kept = pair.starts_for_new(*new_job.deadline);
    starts.insert(starts.end(), kept.begin(), kept.end());
  }
  for (const MemoryFrom& step : options.memory) {
    starts.push_back(step.from);
  }
  std::erase_if(starts, [&](double start) { return !(start >= 0 && start <= end); });  // some are not numbers
  std::sort(starts.begin(), starts.end());
  return starts;
}

double memory_at(const PlanOptions& options, double when) {
  if (options.memory.empty()) {
    return std::numeric_limits<double>::infinity();
  }
  double bytes = 0;
  for (const MemoryFrom& step : options.memory) {
    bytes = step.from <= when ? step.bytes : bytes;
  }
  return bytes;
}

void check(const PlanOptions& options, const PlannedJob& running) {
  for (std::size_t i = 0; i < options.memory.size(); ++i) {
    const auto& [from, bytes] = options.memory[i];
    const bool ascends = i == 0 ? from == 0 : from > options.memory[i - 1].from && bytes >= options.memory[i - 1].bytes;
    if (!ascends || !(bytes >= 0)) {
      throw std::invalid_argument(
          fmt::format("memory steps must begin at 0 s and ascend, got {} bytes from {} s as step {}", bytes, from, i));
    }
  }
  if (options.max_slowdown && !(*options.max_slowdown >= 0 && *options.max_slowdown <= 1)) {
    throw std::invalid_argument(
        fmt::format("max_slowdown of job '{}' must be from 0 to 1, such as 0.05 for 5 %, got {}", running.name,
                    *options.max_slowdown));
  }
  if (!(options.suspend_cost >= 0)) {
    throw std::invalid_argument(fmt::format("suspend_cost must be at least 0 s, got {}", options.suspend_cost));
  }
}

/// Searches all splits and starts. Keeps the best plan so far, and why the alternatives were worse.
class PairSearch {
 public:
  PairSearch(const PlannedJob& new_job, const PlannedJob& running, const PlanOptions& options)
      : new_job_(new_job),
        running_(running),
        options_(options),
        new_split_(split_alone(new_job, memory_at(options, 0))),
        running_split_(split_alone(running, memory_at(options, 0))),
        new_alone_(new_job.alone(new_split_)),
        running_alone_(running.alone(running_split_)) {
    best_ = plan(PlannedStart::kAfter, new_split_, running_split_);
    best_.start_in = running_alone_;
    best_.at_step = running.remaining_steps;
    best_.new_ends = running_alone_ + new_alone_;
    best_.running_ends = running_alone_;
    set_late(best_);
    note(best_);
  }

  void try_sharing() {
    Plan nearest;
    nearest.new_ends = nearest.late = std::numeric_limits<double>::infinity();
    for (std::size_t a = new_split_; a < new_job_.ratios.size(); ++a) {
      for (std::size_t b = running_split_; b < running_.ratios.size(); ++b) {
        try_split(a, b, nearest);
      }
    }
    if (nearest.new_ends < std::numeric_limits<double>::infinity()) {
      note(nearest);
    } else {
      reasons_.push_back("sharing: no split fits the memory and keeps the bound");
    }
    keep(nearest);
  }

  void try_first() {
    Plan first = plan(PlannedStart::kFirst, new_split_, running_split_);
    first.new_ends = new_alone_;
    first.running_ends = new_alone_ + options_.suspend_cost + running_alone_;
    set_late(first);
    if (keeps_bound(first.running_ends)) {
      note(first);
      keep(first);
    } else {
      reasons_.push_back(fmt::format("'{}' first: '{}' would end at {:.4g} s, beyond the bound", new_job_.name,
                                     running_.name, first.running_ends));
    }
  }

  Plan best() {
    best_.reasons = std::move(reasons_);
    best_.costs = costs_;
    return std::move(best_);
  }

 private:
  static Plan plan(PlannedStart start, std::size_t new_split, std::size_t running_split) {
    Plan plan;
    plan.start = start;
    plan.new_sub_batches = 1 << new_split;
    plan.running_sub_batches = 1 << running_split;
    return plan;
  }

  void try_split(std::size_t a, std::size_t b, Plan& nearest) const {
    const Pair pair{{new_alone_, slowdown(new_job_, a, new_split_)},
                    {running_alone_, slowdown(running_, b, running_split_)}};
    const double need = new_job_.peak(a) + running_.peak(b);
    for (const double start : starts_to_try(pair, new_job_, running_, options_)) {
      const PairEnds shared = ends_when_sharing(pair.new_job, {running_alone_ - start, pair.running.ratio});
      const double running_ends = start + shared.b;
      if (start >= running_alone_ || need > memory_at(options_, start) || !keeps_bound(running_ends)) {
        continue;
      }
      Plan found = plan(start == 0 ? PlannedStart::kNow : PlannedStart::kAtStep, a, b);
      found.start_in = start;
      found.at_step = running_.remaining_steps * start / running_alone_;
      found.new_ends = start + shared.a;
      found.running_ends = running_ends;
      set_late(found);
      if (found.cost().is_better_than(nearest.cost())) {
        nearest = found;
      }
    }
  }

  bool keeps_bound(double running_ends) const {
    return !options_.max_slowdown || running_ends <= (1 + *options_.max_slowdown) * running_alone_ * (1 + kTolerance);
  }

  void set_late(Plan& plan) const {
    const auto late = [](double ends, const PlannedJob& job) {
      const double by = job.deadline ? ends - *job.deadline : 0;
      return by > kTolerance * ends ? by : 0;
    };
    plan.late = late(plan.new_ends, new_job_) + late(plan.running_ends, running_);
  }

  void keep(const Plan& plan) {
    if (plan.cost().is_better_than(best_.cost())) {
      best_ = plan;
    }
  }

  void note(const Plan& plan) {
    costs_[static_cast<std::size_t>(plan.start)] = plan.cost();
    reasons_.push_back(fmt::format(
        "{}{}: '{}' ends at {:.4g} s in {} sub-batches, '{}' at {:.4g} s in {}, average {:.4g} s{}",
        to_string(plan.start), plan.start == PlannedStart::kAtStep ? fmt::format(" {:.0f}", plan.at_step) : "",
        new_job_.name, plan.new_ends, plan.new_sub_batches, running_.name, plan.running_ends, plan.running_sub_batches,
        plan.average(), plan.late > 0 ? fmt::format(", {:.4g} s late", plan.late) : ""));
  }

  const PlannedJob& new_job_;
  const PlannedJob& running_;
  const PlanOptions& options_;
  const std::size_t new_split_;  // alone
  const std::size_t running_split_;
  const double new_alone_;  // seconds
  const double running_alone_;
  Plan best_;
  std::array<PlanCost, 4> costs_ = {};
  std::vector<std::string> reasons_;
};

}  // namespace

void check(const PlannedJob& job) {
  check_number(job, "remaining_steps", job.remaining_steps, 0);
  check_number(job, "batch", job.batch, 1);
  check_number(job, "alpha", job.time.alpha, 0);
  check_number(job, "beta", job.time.beta, 0);
  check_number(job, "communication", job.time.communication, 0);
  check_number(job, "delta", job.time.delta, 1);
  check_number(job, "fixed memory", job.memory.fixed, 0);
  check_number(job, "memory per row", job.memory.per_row, 0);
  check_number(job, "step time", job.step(0), std::numeric_limits<double>::min());
  for (const MeasuredSize& size : job.measured) {
    check_number(job, "step time", size.step, std::numeric_limits<double>::min());
    check_number(job, "memory", size.bytes, 0);
  }
  if (job.deadline && !std::isfinite(*job.deadline)) {
    throw std::invalid_argument(
        fmt::format("job '{}': deadline must be a finite number, got {}", job.name, *job.deadline));
  }
  if (job.ratios.empty()) {
    throw std::invalid_argument(fmt::format("job '{}' must have an interference ratio per split, got none", job.name));
  }
  for (const double ratio : job.ratios) {
    check_number(job, "interference ratio", ratio, 1);
  }
}

std::size_t split_alone(const PlannedJob& job, double bytes) {
  for (std::size_t k = 0; k < job.ratios.size(); ++k) {
    if (job.peak(k) <= bytes) {
      return k;
    }
  }
  const std::size_t most = job.ratios.size() - 1;
  throw std::invalid_argument(fmt::format("job '{}' needs {:.4g} bytes alone in {} sub-batches, the device has {:.4g}",
                                          job.name, job.peak(most), 1 << most, bytes));
}

double slowdown(const PlannedJob& job, std::size_t k, std::size_t alone) {
  return job.ratios[k] * job.step(k) / job.step(alone);
}

Plan plan_pair(const PlannedJob& new_job, const PlannedJob& running, const PlanOptions& options) {
  check(new_job);
  check(running);
  check(options, running);
  PairSearch search(new_job, running, options);
  search.try_sharing();
  search.try_first();
  return search.best();
}

}  // namespace torchshare
