#include "planner/server_model.h"

#include <cmath>
#include <stdexcept>
#include <utility>

namespace torchshare {
namespace {

using std::chrono::nanoseconds;

constexpr int kRequests = 50'000;
constexpr unsigned kSeed = 2;
constexpr int kHalvings = 7;  // of the shares' logarithm

/// The same share of the time, always.
struct ConstantShare {
  Pace pace() const { return {.cycle = cycle, .share = share}; }
  void answered(nanoseconds, nanoseconds, nanoseconds, bool) {}

  double share;
  nanoseconds cycle;
};

bool are_times(const std::vector<Seconds>& times) {
  return std::all_of(times.begin(), times.end(), [](Seconds time) { return time > 0 && time < 1e9; });
}

}  // namespace

ServerModel::ServerModel(ServerLoad load) : load_(std::move(load)) {
  if (load_.service.empty() || !are_times(load_.service) || !are_times(load_.beside) || !are_times({load_.op}) ||
      !(load_.per_second >= 0 && load_.per_second < 1e9) || load_.parallel < 1 || !(load_.wait >= 0)) {
    throw std::invalid_argument("a server must have positive service times and a positive load");
  }
}

ServerForecast ServerModel::forecast(double share, Seconds limit) const {
  ConstantShare control{share,
                        std::max(from_seconds(std::min(limit / std::max(share, kLeastShare), 1e6)), nanoseconds(1))};
  return run(control, limit, kRequests, kSeed);
}

double ServerModel::largest_share(const LatencyTarget& target) const {
  const auto holds = [&](double share) { return forecast(share, target.limit).late <= 1 - target.quantile; };
  if (holds(1)) {
    return 1;
  }
  double low = kLeastShare;
  double high = 1;
  double best = 0;
  for (int i = 0; i < kHalvings; ++i) {
    const double share = std::sqrt(low * high);
    (holds(share) ? low : high) = share;
    best = low > kLeastShare ? low : 0;
  }
  return best;
}

}  // namespace torchshare
