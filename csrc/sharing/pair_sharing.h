#pragma once

#include <optional>
#include <string>
#include <utility>

#include "sharing/shared_job.h"

namespace torchshare {

/// Decides which of two jobs run, so that their average completion time is minimal: from profiles at once (plan_pair),
/// otherwise after a probe: a few steps of the first alone, of both, and of the second alone. Decides again when their
/// step times change. The first arrived before the second. Pure; times in seconds.
class PairSharing {
 public:
  enum class Running { kFirst, kBoth, kSecond };

  /// With `max_slowdown`, SlowdownBound keeps that bound.
  PairSharing(SharedRun& first, SharedRun& second, std::optional<double> max_slowdown)
      : runs_{&first, &second}, max_slowdown_(max_slowdown) {}

  /// Called when `job`, one of the two, did a step beside the other.
  void step_together(const SharedRun& job, double period);
  /// The jobs that should run from now on.
  Running choose(double now);
  /// The reason for the choice, with its numbers.
  const std::string& reason() const { return reason_; }
  /// True if there is a new plan since the last call.
  bool take_fresh_plan() { return std::exchange(fresh_, false); }
  /// Called when one of them cannot run for a while: that time is not measured.
  void pause();

 private:
  bool believe_profiles();
  std::optional<Running> probe(double now);
  bool knows_both(double budget, double now);
  bool changed_step_time();
  void probe_again(double now);
  void plan();
  double remaining_alone(int which) const;

  SharedRun* const runs_[2];
  const std::optional<double> max_slowdown_;
  Running running_ = Running::kFirst;
  bool planned_ = false;
  bool fresh_ = false;  // the plan was not reported yet
  // The last probe, which measures the first alone, both, and the second alone.
  bool probed_ = false;
  Running probing_ = Running::kFirst;
  double both_began_ = 0;  // when the second had its first step beside the first
  double both_steps_ = 0;  // the second's steps at that time
  double probe_began_ = 0;
  double probe_ended_ = 0;
  StepMeter together_[2] = {};
  // What the last plan used.
  double alone_[2] = {};  // seconds a step
  double ratios_[2] = {};
  double assumed_[2] = {};  // seconds a step in the plan; 0: the job does not run in it
  std::string reason_;
};

}  // namespace torchshare
