#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <vector>

#include "model/latency_target.h"
#include "model/pace.h"
#include "model/request_times.h"
#include "model/time.h"

namespace torchshare {

/// A job that answers requests, and the job below it. Times in seconds.
struct ServerLoad {
  double per_second = 0;              ///< requests, on average; 0: back to back, each arrives when one is answered
  std::vector<Seconds> service = {};  ///< what requests take alone, each as likely
  /// What they take while the lower job may run, if that was measured. Empty: a request waits for the end of the op
  /// that the lower job is in.
  std::vector<Seconds> beside = {};
  Seconds op = 0;    ///< of the lower job
  int parallel = 1;  ///< requests that are answered at a time
  Seconds wait = 0;  ///< of a request for others that may be answered with it
};

/// What the model expects of a server.
struct ServerForecast {
  TimeSpread latency = {};
  double late = 0;   ///< fraction of the requests
  double lower = 0;  ///< fraction of the time in which ops of the lower job ran
};

/// A server in virtual time whose requests arrive at random (M/G/k), beside a job that runs ops of one length whenever
/// its pace lets it and the server is idle. Pure.
class ServerModel {
 public:
  /// Throws std::invalid_argument for a load without service times, or one that is not positive.
  explicit ServerModel(ServerLoad load);

  /// `control.pace()` is the pace of the lower job, and `control.answered` is called as LatencyPace's.
  template <class Control>
  ServerForecast run(Control& control, Seconds limit, int requests, unsigned seed) const;

  /// With the lower job in slices of `limit`, for a constant share of the time.
  ServerForecast forecast(double share, Seconds limit) const;
  /// The largest such share with which the promise holds, within 6 %; 0 if none above 0.1 % does.
  double largest_share(const LatencyTarget& target) const;

 private:
  Seconds draw(const std::vector<Seconds>& times, std::mt19937_64& random) const {
    return times[std::uniform_int_distribution<std::size_t>(0, times.size() - 1)(random)];
  }

  /// Whether the lower job may enter an op during a request, or be in one when it begins.
  bool may_run(const Pace& pace, Seconds taken, Seconds service) const {
    return pace.share > 0 && (pace.wait(from_seconds(taken)) < from_seconds(service) ||
                              pace.wait(from_seconds(std::max(0.0, taken - load_.op))).count() == 0);
  }

  ServerLoad load_;
};

template <class Control>
ServerForecast ServerModel::run(Control& control, Seconds limit, int requests, unsigned seed) const {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> next(load_.per_second > 0 ? load_.per_second : 1);
  std::vector<Seconds> free(static_cast<std::size_t>(load_.parallel), 0);  // when each request handler is free
  Seconds arrival = 0;
  Seconds device_free = 0;
  ServerForecast found;
  for (int i = 0; i < requests; ++i) {
    const auto next_free = std::min_element(free.begin(), free.end());
    arrival = load_.per_second > 0 ? arrival + next(random) : *next_free;
    const Seconds ready = arrival + load_.wait;
    Seconds now = std::max(*std::max_element(free.begin(), free.end()), device_free);
    while (now < ready && control.pace().share > 0) {
      if (const auto wait = control.pace().wait(from_seconds(now)); wait.count() > 0) {
        now += to_seconds(wait);
        continue;
      }
      const Seconds open = std::min(to_seconds(control.pace().open_for(from_seconds(now))), ready - now);
      const Seconds ops = std::max(1.0, std::ceil(open / load_.op)) * load_.op;
      found.lower += ops;
      device_free = now += ops;
    }
    const Seconds taken = std::max({ready, *next_free, load_.beside.empty() ? device_free : 0});
    Seconds service = draw(load_.service, random);
    if (!load_.beside.empty() && may_run(control.pace(), taken, service)) {
      service = draw(load_.beside, random);
    }
    *next_free = taken + service;
    const auto latency = from_seconds(*next_free - arrival);
    found.latency.add(latency);
    found.late += *next_free - arrival > limit ? 1 : 0;
    control.answered(from_seconds(*next_free), latency, from_seconds(taken - arrival), true);
  }
  found.late /= requests;
  found.lower /= *std::max_element(free.begin(), free.end());
  return found;
}

}  // namespace torchshare
