#include "cluster/dependencies.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "model/cycle_finder.h"

namespace torchshare {

std::vector<JobId> find_cycle(const Predecessors& predecessors) {
  CycleFinder<JobId> finder;
  for (JobId root = 0; root < predecessors.size(); ++root) {
    std::vector<JobId> cycle = finder.find(root, [&](JobId job) { return predecessors[job]; });
    if (!cycle.empty()) {
      return cycle;
    }
  }
  return {};
}

Dependencies::Dependencies(const Predecessors& predecessors, std::size_t jobs) {
  if (predecessors.empty()) {
    return;
  }
  if (predecessors.size() != jobs) {
    throw std::invalid_argument(
        fmt::format("dependencies must have one entry per job, got {} for {} jobs", predecessors.size(), jobs));
  }
  left_.resize(jobs);
  successors_.resize(jobs);
  for (JobId job = 0; job < jobs; ++job) {
    const std::set<JobId> distinct(predecessors[job].begin(), predecessors[job].end());
    left_[job] = 1 + distinct.size();
    for (const JobId other : distinct) {
      if (other >= jobs) {
        throw std::invalid_argument(fmt::format("job {} waits for job {}, which is not one of {}", job, other, jobs));
      }
      successors_[other].push_back(job);
    }
  }
  const std::vector<JobId> cycle = find_cycle(predecessors);
  if (!cycle.empty()) {
    throw std::invalid_argument(fmt::format("jobs must not wait for each other, got {}", fmt::join(cycle, " after ")));
  }
}

std::vector<double> Dependencies::longest_behind(const std::vector<double>& work) const {
  std::vector<std::size_t> left = left_;
  std::vector<JobId> order;  // each after those that it waits for
  for (JobId job = 0; job < left.size(); ++job) {
    if (left[job] == 1) {  // its arrival
      order.push_back(job);
    }
  }
  for (std::size_t place = 0; place < order.size(); ++place) {
    for (const JobId next : successors(order[place])) {
      if (--left[next] == 1) {
        order.push_back(next);
      }
    }
  }
  std::vector<double> behind(work.size());
  for (auto job = order.rbegin(); job != order.rend(); ++job) {
    for (const JobId next : successors(*job)) {
      behind[*job] = std::max(behind[*job], work[next] + behind[next]);
    }
  }
  return behind;
}

}  // namespace torchshare
