#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "cluster/simulator.h"

namespace torchshare {

inline std::vector<Seconds> durations_of(const std::vector<WorkloadJob>& workload) {
  std::vector<Seconds> durations;
  for (const WorkloadJob& job : workload) {
    durations.push_back(job.duration);
  }
  return durations;
}

inline Simulator simulator_of(std::string_view policy, const ClusterOptions& options, const Interference& interference,
                              const std::vector<WorkloadJob>& workload) {
  return {Cluster(options, interference, workload, durations_of(workload)), make_cluster_policy(policy)};
}

/// Simulates a workload; returns the end of each job.
inline std::vector<Seconds> ends_of(std::string_view policy, const ClusterOptions& options,
                                    const Interference& interference, const std::vector<WorkloadJob>& workload) {
  Simulator simulator = simulator_of(policy, options, interference, workload);
  while (simulator.step()) {
  }
  std::vector<Seconds> ends;
  for (JobId job = 0; job < workload.size(); ++job) {
    ends.push_back(simulator.cluster().job(job).ended);
  }
  return ends;
}

/// A workload of `jobs` jobs for a cluster of `gpus` GPUs of 16 GiB: heavy-tailed, with bursts of simultaneous
/// arrivals.
inline std::vector<WorkloadJob> random_workload(std::mt19937_64& random, int jobs, int gpus, int models) {
  std::lognormal_distribution<double> duration(4, 1.5);
  std::exponential_distribution<double> gap(0.02);
  std::vector<WorkloadJob> workload;
  Seconds now = 0;
  for (int i = 0; i < jobs; ++i) {
    now += random() % 3 == 0 ? 0 : gap(random);
    const int asked = std::min(gpus, 1 << (random() % 4));
    const auto memory = static_cast<double>(random() % 17);
    const int model = static_cast<int>(random() % static_cast<unsigned>(models));
    const SplitModel split{.fixed_time = 0.1 * (model + 1), .most = 4 << model};
    workload.push_back({now, duration(random), asked, memory, model, 0, 0, split});
  }
  return workload;
}

/// Up to three predecessors for one job in two, without cycles. A job may arrive before those that it waits for.
inline Predecessors random_predecessors(std::mt19937_64& random, std::size_t jobs) {
  std::vector<JobId> order(jobs);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), random);
  Predecessors after(jobs);
  for (std::size_t place = 1; place < jobs; ++place) {
    for (unsigned count = random() % 2 == 0 ? 0 : 1 + random() % 3; count > 0; --count) {
      after[order[place]].push_back(order[random() % place]);
    }
  }
  return after;
}

}  // namespace torchshare
