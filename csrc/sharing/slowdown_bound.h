#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "model/pace.h"

namespace torchshare {

/// What must not take longer.
enum class BoundUnit { kStep, kRequest };

/// A second in which other jobs ran beside the primary.
struct BoundWindow {
  std::chrono::nanoseconds begin;
  std::chrono::nanoseconds end;
  double slowdown;  ///< mean step time / step time alone - 1
};

/// How well a bound on the primary's slowdown was kept.
struct BoundStats {
  BoundUnit unit = BoundUnit::kStep;
  std::uint64_t windows = 0;  ///< windows of one second in which others ran beside it
  std::uint64_t windows_inside = 0;
  double alone = 0;  ///< seconds of a unit alone
  double loss = 0;   ///< fraction of the others' time that the primary loses to them
  double share = 1;  ///< fraction of the time in which others may run, as last set
  std::vector<BoundWindow> recent{};
};

/// Keeps a bound on the primary's slowdown: learns from the primary's steps how long a step takes alone and what the
/// other jobs cost it, and limits how much they may run.
///
/// Note [Held slices]
/// Lower jobs run in a slice of each cycle and are held for the rest of it, so that steps with and without them lie
/// side by side and the machine's drift affects both. A line is fitted through the steps' rates (1 / time, weighted by
/// time) over the share of each step in which the others could run, with old steps fading: rate = (1 - loss * share) /
/// step alone. If the others may run for a share s of the time, the slowdown is 1 / (1 - s * loss) - 1. A part of each
/// cycle is always held; otherwise there would be nothing to compare with. Steps vary, so the target is a margin below
/// the bound: it shrinks with each one-second window outside the bound and grows with each inside, so that 5 % are
/// outside. A window is compared with recent steps without the others, if there are enough, because a machine's speed
/// changes within seconds.
/// Without a step for some time, others may run at any time if too few were measured to know what the others cost it,
/// and always if the units are requests: a server that nobody asks loses nothing, but the first request after that is
/// not bounded. A job that evaluates between two steps keeps the pace that its steps have set.
///
/// Pure: the caller reports the primary's steps, with times of any monotonic clock, real or virtual.
class SlowdownBound {
 public:
  static constexpr double kOutsideShare = 0.05;
  static constexpr std::size_t kRecent = 3600;  ///< windows that are kept

  /// `alone`: step time from a profile in seconds, as a prior. Throws std::invalid_argument.
  explicit SlowdownBound(double bound, std::optional<double> alone = {}, BoundUnit unit = BoundUnit::kStep);

  /// Called instead of `step` for steps whose times say nothing, because the job warms up.
  void warm_up(std::chrono::nanoseconds begin, std::chrono::nanoseconds end) { renew(begin, end); }
  /// Called when the primary did a step in [begin, end), with or without lower jobs beside it, which could run as
  /// `applied` says.
  void step(std::chrono::nanoseconds begin, std::chrono::nanoseconds end, bool beside, const Pace& applied);
  void step(std::chrono::nanoseconds begin, std::chrono::nanoseconds end, bool beside) {
    step(begin, end, beside, pace_);
  }

  /// Whether the last step was so recent that another one is expected.
  bool is_current(std::chrono::nanoseconds now) const { return now < next_by_; }
  const Pace& pace() const { return pace_; }
  /// True once even the smallest share has exceeded the bound; the pace then stays 0.
  bool cannot_hold() const { return cannot_hold_; }
  BoundUnit unit() const { return unit_; }
  double alone() const { return alone_; }  ///< seconds of a unit alone; 0: unknown
  /// Fraction of the others' time that the primary loses to them.
  double loss() const { return loss_; }

  /// Windows of one second with other jobs running, and those of them in which the mean step was within the bound.
  std::uint64_t windows() const { return windows_; }
  std::uint64_t windows_inside() const { return windows_inside_; }
  /// The last windows, the oldest first.
  const std::deque<BoundWindow>& recent() const { return recent_; }
  BoundStats stats() const {
    return {unit_, windows_, windows_inside_, alone_, loss_, pace_.share, {recent_.begin(), recent_.end()}};
  }

 private:
  void renew(std::chrono::nanoseconds begin, std::chrono::nanoseconds end);
  void learn(double time, double open);  // seconds
  void fit();
  void adjust(std::chrono::nanoseconds now);
  void count_window(std::chrono::nanoseconds begin, std::chrono::nanoseconds end);

  /// Sums over steps, weighted by duration and age; x: open share, y: rate.
  struct Sums {
    double weight = 0, x = 0, y = 0, xx = 0, xy = 0, yy = 0, count = 0;
  };

  const double bound_;
  const BoundUnit unit_;
  Pace pace_;
  Sums sums_;
  double alone_;
  double margin_;          // the target as a share of the bound
  double held_steps_ = 0;  // recent, with the others held
  double held_time_ = 0;
  double loss_ = 0;
  double loss_error_ = 0;  // standard error
  std::uint64_t steps_ = 0;
  int stalls_ = 0;  // in a row, including the last step
  bool cannot_hold_ = false;
  std::chrono::nanoseconds next_by_{0};  // the next step should have come until then
  std::chrono::nanoseconds began_{-1};
  std::chrono::nanoseconds window_begin_{-1};
  double window_time_ = 0;
  std::uint64_t window_steps_ = 0;
  std::uint64_t windows_ = 0;
  std::uint64_t windows_inside_ = 0;
  std::deque<BoundWindow> recent_;
};

}  // namespace torchshare
