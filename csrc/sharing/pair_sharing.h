#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "model/time.h"
#include "sharing/shared_job.h"

namespace torchshare {

/// Decides which of two jobs run, so that their average completion time is minimal and deadlines are kept: from
/// profiles at once (plan_pair), otherwise after a probe: a few steps of the first alone, of both, and of the second
/// alone. Decides again when their step times change, and now and then while a deadline has yet to come. Beside a job
/// that answers requests, the other runs at once: such a job has no end to wait for, and its promise limits the other;
/// unless its profile says that no share of the time keeps that. The first arrived before the second. Pure.
class PairSharing {
 public:
  enum class Running { kFirst, kBoth, kSecond };

  /// With `max_slowdown`, SlowdownBound keeps that bound.
  PairSharing(SharedRun& first, SharedRun& second, std::optional<double> max_slowdown)
      : runs_{&first, &second}, max_slowdown_(max_slowdown) {}

  /// Called when `job`, one of the two, did a step beside the other.
  void step_together(const SharedRun& job, Seconds period);
  /// The jobs that should run from now on.
  Running choose(std::chrono::nanoseconds now);
  /// When to choose again even if nothing happens.
  std::chrono::nanoseconds plan_again_at() const { return plan_again_at_; }
  /// The reason for the choice, with its numbers.
  const std::string& reason() const { return reason_; }
  /// True if there is a new plan since the last call.
  bool take_fresh_plan() { return std::exchange(fresh_, false); }
  /// Called when one of them cannot run for a while: that time is not measured.
  void pause();

 private:
  Running beside_requests();
  bool believe_profiles();
  std::optional<Running> probe(std::chrono::nanoseconds now);
  bool knows_both(Seconds budget, std::chrono::nanoseconds now);
  bool changed_step_time();
  void probe_again(std::chrono::nanoseconds now);
  void plan(std::chrono::nanoseconds now);
  void plan_again(std::chrono::nanoseconds now);
  double step_begun(int which, std::chrono::nanoseconds now) const;
  Seconds time_left(int which, std::chrono::nanoseconds now) const;
  bool may_wait(int which, Seconds time, std::chrono::nanoseconds now) const;
  Seconds remaining_alone(int which) const;

  SharedRun* const runs_[2];
  const std::optional<double> max_slowdown_;
  Running running_ = Running::kFirst;
  bool planned_ = false;
  std::chrono::nanoseconds plan_again_at_ = kNever;
  bool fresh_ = false;  // the plan was not reported yet
  // The last probe, which measures the first alone, both, and the second alone.
  bool probed_ = false;
  Running probing_ = Running::kFirst;
  std::optional<std::chrono::nanoseconds> both_began_{};  // when the second had its first step beside the first
  double both_steps_ = 0;                                 // the second's steps at that time
  std::chrono::nanoseconds probe_began_{0};
  std::chrono::nanoseconds probe_ended_{0};
  StepMeter together_[2] = {};
  // What the last plan used.
  Seconds alone_[2] = {};  // step times
  double ratios_[2] = {};
  Seconds assumed_[2] = {};  // step times in the plan; 0: the job does not run in it
  std::string reason_;
};

}  // namespace torchshare
