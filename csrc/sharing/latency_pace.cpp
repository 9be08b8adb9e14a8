#include "sharing/latency_pace.h"

#include <algorithm>
#include <cmath>

#include "model/time.h"

namespace torchshare {
namespace {

using std::chrono::nanoseconds;

constexpr double kSaved = 30;          // late requests that the budget can save up
constexpr double kGain = 0.6;          // how much a late request changes the logarithm of the share, without a budget
constexpr double kMinGain = 0.06;      // the same with a full one
constexpr double kGrowth = 0.24;       // what the share grows by per late request that is allowed, without a budget
constexpr double kMaxGrowth = 1.2;     // the same with a full one
constexpr double kFirstGrowth = 0.02;  // per request, before the first late one
constexpr double kOverdrawn = -1;      // the budget below which lower jobs are held
constexpr double kQuiet = 50;          // limits without an answer, after which lower jobs may run at any time
constexpr double kReserve = 1;         // of the budget, to be saved up before that time is at its shortest
constexpr Seconds kLongest = 1e6;      // such a time
constexpr double kEnoughLate = 20;  // late requests alone, to give the promise up; what is known of them fades with the
                                    // requests in which as many are allowed

}  // namespace

void LatencyPace::answered(nanoseconds now, nanoseconds latency, nanoseconds queued, bool beside) {
  if (!beside) {
    return;
  }
  const double allowed = 1 - target_.quantile;
  const bool is_late = to_seconds(latency) > target_.limit;
  ++answered_;
  misses_ += is_late ? 1 : 0;
  budget_ = std::min(budget_ + allowed - (is_late ? 1 : 0), kSaved);
  if (cannot_hold_ || (budget_ < kOverdrawn && pace_.share == 0 && now - latency < pace_.until)) {
    look_alone(is_late);
  }
  has_missed_ = has_missed_ || is_late;
  is_queue_late_ = to_seconds(queued) > target_.limit;
  const double saved = std::clamp(budget_ / kSaved, 0.0, 1.0);
  const double growth = allowed * std::lerp(kGrowth, kMaxGrowth, saved);
  share_ *= std::exp((has_missed_ ? growth : kFirstGrowth) - (is_late ? std::lerp(kGain, kMinGain, saved) : 0));
  share_ = std::clamp(share_, kLeastShare, 1.0);
  pace_.origin += (now - pace_.origin) / pace_.cycle * pace_.cycle;       // begin of the current cycle
  const double to_make_up = std::max(0.0, kReserve - budget_) / allowed;  // requests in time
  const nanoseconds quiet = from_seconds(std::min(kQuiet * target_.limit * (1 + to_make_up), kLongest));
  pace_.until = now + quiet;
  set_share();
}

/// Whether the job keeps the promise while lower jobs are held.
void LatencyPace::look_alone(bool is_late) {
  const double allowed = 1 - target_.quantile;
  const double fade = std::exp(-allowed / kEnoughLate);
  held_ = held_ * fade + 1;
  held_misses_ = held_misses_ * fade + (is_late ? 1 : 0);
  if (!cannot_hold_) {
    cannot_hold_ = held_misses_ > kEnoughLate && held_misses_ > 2 * allowed * held_;
  } else if (held_misses_ < allowed * held_) {
    cannot_hold_ = false;
    held_ = held_misses_ = budget_ = 0;
    share_ = kFirstShare;
  }
}

void LatencyPace::set_share() {
  pace_.share = cannot_hold_ || is_queue_late_ || budget_ < kOverdrawn ? 0 : share_;
  pace_.cycle = std::max(from_seconds(target_.limit / share_), nanoseconds(1));
}

}  // namespace torchshare
