#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

#include "model/log_histogram.h"
#include "model/time.h"

namespace torchshare {

/// Mean and quantiles of the times of requests.
class TimeSpread {
 public:
  void add(std::chrono::nanoseconds time) {
    histogram_.add(time);
    total_ += to_seconds(time);
  }
  std::uint64_t count() const { return histogram_.count(); }
  /// 0 without times.
  Seconds mean() const { return count() == 0 ? 0 : total_ / static_cast<double>(count()); }
  /// Within 2.2 %, rounded up; 0 without times.
  Seconds quantile(double share) const;
  /// How many times are at most so long, within 2.2 %.
  std::uint64_t at_most(Seconds time) const { return histogram_.at_most(from_seconds(time)); }

 private:
  LogHistogram<32> histogram_;
  Seconds total_ = 0;
};

/// The times of the requests to a job. Not thread-safe.
class RequestTimes {
 public:
  /// From now on, an answer that takes longer than `limit` from the request's arrival is late.
  void promise(Seconds limit) { limit_ = limit; }
  /// Called when a request has its answer; times of one monotonic clock, with arrival <= begin <= end.
  /// Returns whether it is late.
  bool answered(std::chrono::nanoseconds arrival, std::chrono::nanoseconds begin, std::chrono::nanoseconds end);
  /// Called when a request got an error instead; its times do not count.
  void failed() { ++failed_; }
  /// Called when the job finds a request that its client gave up before the job took it. Returns whether it is late.
  bool given_up(std::chrono::nanoseconds arrival, std::chrono::nanoseconds end);

  std::uint64_t failures() const { return failed_; }
  std::uint64_t given_up() const { return given_up_; }
  /// Answered later than promised, or given up later than that.
  std::uint64_t late() const { return late_; }
  const TimeSpread& latency() const { return latency_; }  ///< end - arrival
  const TimeSpread& service() const { return service_; }  ///< end - begin
  const TimeSpread& queued() const { return queued_; }    ///< begin - arrival

 private:
  bool count_if_late(std::chrono::nanoseconds latency);

  Seconds limit_ = std::numeric_limits<Seconds>::infinity();
  std::uint64_t late_ = 0;
  std::uint64_t failed_ = 0;
  std::uint64_t given_up_ = 0;
  TimeSpread latency_;
  TimeSpread service_;
  TimeSpread queued_;
};

}  // namespace torchshare
