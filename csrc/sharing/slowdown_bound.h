#pragma once

#include <cstdint>
#include <optional>

#include "sharing/pace.h"

namespace torchshare {

/// Holds the primary to a bound on its slowdown: from its own steps it learns how long one takes alone and what the
/// others cost it, and sets how much they may run.
///
/// Note [Held slices]
/// Lower jobs run in slices of each cycle and are held in the rest, so that steps with and without them lie side by
/// side and the machine's drift is in both. A line is fitted through the steps' rates (1 / time, weighted by time) over
/// the share of each in which the others might run, old steps fading: rate = (1 - loss * share) / step alone. With a
/// share s of all time open, the slowdown is 1 / (1 - s * loss) - 1. Some of each cycle is always held, or there would
/// be nothing to compare.
/// Steps vary, so the aim is a margin below the bound: it shrinks with each window of a second that was outside, and
/// grows with those inside, so as to have 5 % outside. A window is held against the steps of its time with the others
/// held, where there are enough, for machines get faster and slower within seconds.
///
/// Pure: told of the primary's steps, in any order of real or virtual time that does not go back.
class SlowdownBound {
 public:
  static constexpr double kOutsideShare = 0.05;

  /// `alone`: seconds of a step as a profile has it, to begin with. Throws std::invalid_argument.
  explicit SlowdownBound(double bound, std::optional<double> alone = {});

  /// The primary did a step in [begin, end), with lower jobs beside it or not.
  void step(std::chrono::nanoseconds begin, std::chrono::nanoseconds end, bool beside);

  const Pace& pace() const { return pace_; }
  /// Even hardly any of the others' running breaks the bound; the pace is 0 for good.
  bool cannot_hold() const { return cannot_hold_; }
  double alone() const { return alone_; }  ///< seconds of a step alone; 0: not known
  /// Share of the time in which the others may run that the primary loses to them.
  double loss() const { return loss_; }

  /// Windows of a second with others beside, and those of them in which the mean step was within the bound.
  std::uint64_t windows() const { return windows_; }
  std::uint64_t windows_inside() const { return windows_inside_; }

 private:
  void learn(double time, double open);  // seconds
  void fit();
  void adjust(std::chrono::nanoseconds now);
  void count_window(std::chrono::nanoseconds begin, std::chrono::nanoseconds end);

  /// Over the steps, each weighted by its time and its age; x: share open, y: rate.
  struct Sums {
    double weight = 0, x = 0, y = 0, xx = 0, xy = 0, yy = 0, count = 0;
  };

  const double bound_;
  Pace pace_;
  Sums sums_;
  double alone_;
  double margin_;          // of the bound, that is aimed at
  double held_steps_ = 0;  // of late, with the others held
  double held_time_ = 0;
  double loss_ = 0;
  double loss_error_ = 0;  // standard error
  std::uint64_t steps_ = 0;
  int stalls_ = 0;  // one after the other, the last step included
  bool cannot_hold_ = false;
  std::chrono::nanoseconds began_{-1};
  std::chrono::nanoseconds window_begin_{-1};
  double window_time_ = 0;
  std::uint64_t window_steps_ = 0;
  std::uint64_t windows_ = 0;
  std::uint64_t windows_inside_ = 0;
};

}  // namespace torchshare
