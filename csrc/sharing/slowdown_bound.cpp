#include "sharing/slowdown_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "model/time.h"

namespace torchshare {
namespace {

using std::chrono::nanoseconds;
using namespace std::chrono_literals;

constexpr double kMemory = 10;        // old steps fade with this time constant in seconds,
constexpr double kMemorySteps = 64;   // or with this many steps if that is longer
constexpr double kFirstMargin = 0.8;  // the first target / bound; windows then adapt it
constexpr double kMinMargin = 0.5;    // lower limit of that: larger deviations have other causes
constexpr double kOutside = 0.85;     // factor after a window outside the bound
const double kInside = std::pow(1 / kOutside, SlowdownBound::kOutsideShare / (1 - SlowdownBound::kOutsideShare));
constexpr double kLate = 2;           // time constant in seconds of steps with the others held, as a window's reference
constexpr double kHardlyOpen = 0.1;   // steps with a smaller open share count as held
constexpr double kMinHeld = 5;        // held steps needed to compare a window with
constexpr double kFirstShare = 0.05;  // minimum share until enough is measured
constexpr double kMaxLoss = 0.95;
constexpr double kMinSpread = 1e-4;      // minimum variance of the steps' open shares
constexpr double kMaxShare = 0.9;        // see Note [Held slices]
constexpr double kMinShare = 0.02;       // smallest share, unless it is 0
constexpr std::uint64_t kMinSteps = 16;  // steps before the pace is adjusted
constexpr int kPriorSteps = 4;           // weight of a profile, in steps
constexpr double kStall = 5;             // a step that takes this many expected steps is a stall
constexpr int kManyStalls = 8;           // consecutive stalls mean that the step time has changed
constexpr double kStepsPerCycle = 4;     // minimum; otherwise all steps would have the same open share
constexpr nanoseconds kShortestCycle = 200ms;
constexpr nanoseconds kWindow = 1s;
constexpr nanoseconds kPatience = 3s;       // evidence needed to give up the bound
constexpr Seconds kLongestUnit = 1e5;       // what is taken for longer is noise
constexpr int kQuietUnits = 50;             // units without another one, after which others may run at any time,
constexpr nanoseconds kShortestQuiet = 1s;  // or this time if it is longer

}  // namespace

SlowdownBound::SlowdownBound(double bound, std::optional<double> alone, BoundUnit unit)
    : bound_(bound), unit_(unit), alone_(alone.value_or(0)), margin_(kFirstMargin) {
  if (!(bound >= 0 && bound <= 1)) {
    throw std::invalid_argument(fmt::format("max_slowdown must be from 0 to 1, such as 0.05 for 5 %, got {}", bound));
  }
  pace_.share = std::max(kFirstShare, bound / (1 + bound));  // the latter keeps the bound even at a loss of 1
  if (alone) {
    for (int step = 0; step < kPriorSteps; ++step) {
      learn(*alone, 0);
    }
    steps_ = 0;
  }
}

void SlowdownBound::step(nanoseconds begin, nanoseconds end, bool beside, const Pace& applied) {
  const double time = to_seconds(end - begin);
  if (time <= 0) {
    return;
  }
  const double open = beside ? to_seconds(applied.open_within(std::max(begin, applied.origin), end)) / time : 0;
  renew(begin, end);  // may change `applied`
  if (alone_ > 0 && time > kStall * alone_ / (1 - std::min(loss_, kMaxLoss))) {
    if (++stalls_ < kManyStalls) {
      return;
    }
    sums_ = {};  // the step time has changed, or the profile was wrong
    alone_ = 0;
  }
  stalls_ = 0;
  learn(time, open);
  fit();
  if (beside) {
    count_window(begin, end);
    began_ = began_ < 0ns ? begin : began_;
    if (end - pace_.origin >= pace_.cycle) {
      adjust(end);
    }
  } else {
    window_begin_ = nanoseconds(-1);
    window_time_ = 0;
    window_steps_ = 0;
  }
}

/// The pace holds until there has been no other step for long.
void SlowdownBound::renew(nanoseconds begin, nanoseconds end) {
  const bool lasts = unit_ == BoundUnit::kStep && steps_ >= kMinSteps;
  next_by_ =
      end + std::max(kShortestQuiet, kQuietUnits * std::max(end - begin, from_seconds(std::min(alone_, kLongestUnit))));
  pace_.until = lasts ? nanoseconds::max() : next_by_;
}

void SlowdownBound::learn(double time, double open) {
  const double fade = std::exp(-std::min(time / kMemory, 1 / kMemorySteps));
  for (double* sum : {&sums_.weight, &sums_.x, &sums_.y, &sums_.xx, &sums_.xy, &sums_.yy, &sums_.count}) {
    *sum *= fade;
  }
  const double rate = 1 / time;
  sums_.weight += time;
  sums_.x += time * open;
  sums_.y += time * rate;
  sums_.xx += time * open * open;
  sums_.xy += time * open * rate;
  sums_.yy += time * rate * rate;
  sums_.count += 1;
  ++steps_;
  const double fade_late = std::exp(-time / kLate);
  const bool held = open < kHardlyOpen;
  held_steps_ = held_steps_ * fade_late + (held ? 1 : 0);
  held_time_ = held_time_ * fade_late + (held ? time : 0);
}

/// Least squares, see Note [Held slices].
void SlowdownBound::fit() {
  const double x = sums_.x / sums_.weight;
  const double y = sums_.y / sums_.weight;
  const double xx = sums_.xx / sums_.weight - x * x;
  if (sums_.count < 3 || xx < kMinSpread) {
    alone_ = alone_ > 0 && x > kHardlyOpen ? alone_ : 1 / y;
    return;
  }
  const double xy = sums_.xy / sums_.weight - x * y;
  const double slope = xy / xx;
  const double rate_alone = y - slope * x;
  if (rate_alone <= 0) {
    return;  // too few steps
  }
  alone_ = 1 / rate_alone;
  loss_ = -slope * alone_;
  const double rest = std::max(sums_.yy / sums_.weight - y * y - slope * xy, 0.0);
  loss_error_ = std::sqrt(rest / (sums_.count - 2) / xx) * alone_;
}

void SlowdownBound::adjust(nanoseconds now) {
  if (steps_ < kMinSteps || cannot_hold_) {
    return;
  }
  const double surely = loss_ - 2 * loss_error_;
  cannot_hold_ = surely * kMinShare > bound_ / (1 + bound_) && now - began_ > kPatience;
  const double aim = margin_ * bound_;
  const double share = loss_ > loss_error_ ? aim / (1 + aim) / loss_ : kMaxShare;  // a smaller loss may be noise
  pace_.origin += (now - pace_.origin) / pace_.cycle * pace_.cycle;                // begin of the current cycle
  pace_.share = cannot_hold_ ? 0 : std::clamp(share, kMinShare, kMaxShare);
  pace_.cycle = std::max(kShortestCycle, nanoseconds(static_cast<std::int64_t>(kStepsPerCycle * alone_ * 1e9)));
}

void SlowdownBound::count_window(nanoseconds begin, nanoseconds end) {
  window_begin_ = window_begin_ < 0ns ? begin : window_begin_;
  window_time_ += to_seconds(end - begin);
  ++window_steps_;
  if (end - window_begin_ >= kWindow) {
    const double alone = held_steps_ >= kMinHeld ? held_time_ / held_steps_ : alone_;
    const double slowdown = window_time_ / (alone * static_cast<double>(window_steps_)) - 1;
    const bool inside = slowdown <= bound_;
    recent_.push_back({window_begin_, end, slowdown});
    if (recent_.size() > kRecent) {
      recent_.pop_front();
    }
    ++windows_;
    windows_inside_ += inside ? 1 : 0;
    margin_ = std::clamp(margin_ * (inside ? kInside : kOutside), kMinMargin, 1.0);
    window_begin_ = end;
    window_time_ = 0;
    window_steps_ = 0;
  }
}

}  // namespace torchshare
