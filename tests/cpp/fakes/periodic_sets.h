#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "model/periodic_task.h"

namespace torchshare {

/// 2 to 8 tasks whose utilizations have a uniformly random sum of 0.1 to `most` (UUniFast, Bini and Buttazzo 2005).
/// Periods are 10 to 200 ms, deadlines at most as long.
inline std::vector<PeriodicTask> random_tasks(std::mt19937_64& random, double most) {
  const auto between = [&](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
  const int count = std::uniform_int_distribution(2, 8)(random);
  double left = between(0.1, most);
  std::vector<PeriodicTask> tasks;
  for (int i = 0; i < count; ++i) {
    const double rest = i + 1 < count ? left * std::pow(between(0, 1), 1.0 / (count - 1 - i)) : 0;
    const double period = 1e5 * std::round(100 * std::pow(20, between(0, 1)));  // ns
    const double cost = std::max(1e4, (left - rest) * period);
    const double deadline = std::max(cost, between(0.5, 1) * period);
    const auto whole = [](double time) { return std::chrono::nanoseconds(static_cast<std::int64_t>(time)); };
    tasks.push_back({whole(period), whole(deadline), whole(cost), whole(cost)});
    left = rest;
  }
  return tasks;
}

}  // namespace torchshare
