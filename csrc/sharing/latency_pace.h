#pragma once

#include <chrono>
#include <cstdint>

#include "model/latency_target.h"
#include "model/pace.h"

namespace torchshare {

/// How well a promise about latencies was kept.
struct LatencyStats {
  LatencyTarget target;
  std::uint64_t answered = 0;  ///< while lower jobs ran beside it
  std::uint64_t misses = 0;    ///< of these, answered later than promised
  double share = 1;            ///< fraction of the time in which lower jobs may enter, as last set
  bool cannot_hold = false;
};

/// Keeps a promise about the latencies of a job's requests by the pace of lower jobs.
///
/// Note [Error budget]
/// A promise such as "99 % within 20 ms" leaves a budget of late requests, 1 %. A late request makes the share of lower
/// jobs smaller by a factor, one in time makes it larger by a much smaller one: the share comes to rest where late
/// requests are as frequent as the factors say (stochastic approximation, Robbins and Monro 1951). The factors depend
/// on what has been saved of the budget, because late requests come in bursts that often have another cause: with much
/// saved, a burst changes little. Lower jobs are held while more requests have been late than were allowed; if as many
/// are late meanwhile, the job misses the promise alone, and they are held until it has kept it for some time.
/// They run in slices as long as the promise, and only the time between two slices changes: an op that begins in a
/// slice runs on after it, so that shorter slices would change nothing. While requests wait in the queue for longer
/// than the promise, all of them will be late, and lower jobs are held until the queue is short again.
/// A server that is seldom asked tells little, and loses little: once it has answered nothing for some time, lower jobs
/// may run at any time until its next answer. The more late requests must be made up for, the longer is that time.
///
/// Pure: the caller reports requests, with times of any monotonic clock, real or virtual.
class LatencyPace {
 public:
  explicit LatencyPace(LatencyTarget target) : target_(target) { set_share(); }

  /// Called when a request has been answered, or found to be given up by its client; `latency` includes the time
  /// `queued` before the job took it. `beside`: lower jobs ran beside it.
  void answered(std::chrono::nanoseconds now, std::chrono::nanoseconds latency, std::chrono::nanoseconds queued,
                bool beside);

  const LatencyTarget& target() const { return target_; }
  const Pace& pace() const { return pace_; }
  /// True while the job misses it alone: many requests were late while lower jobs were held. They then stay held.
  bool cannot_hold() const { return cannot_hold_; }
  LatencyStats stats() const { return {target_, answered_, misses_, pace_.share, cannot_hold_}; }

 private:
  static constexpr double kFirstShare = 0.05;

  void look_alone(bool is_late);
  void set_share();

  const LatencyTarget target_;
  Pace pace_{.until = std::chrono::nanoseconds(0)};  // until the first answer, lower jobs may run at any time
  double share_ = kFirstShare;
  double budget_ = 0;  // late requests that may still come
  bool has_missed_ = false;
  bool is_queue_late_ = false;  // the last request was late before the job took it
  bool cannot_hold_ = false;
  std::uint64_t answered_ = 0;
  std::uint64_t misses_ = 0;
  double held_ = 0;  // requests while lower jobs were held, with old ones fading
  double held_misses_ = 0;
};

}  // namespace torchshare
