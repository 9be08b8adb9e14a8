#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>

#include "gate/gate.h"
#include "runtime/job_table.h"
#include "sharing/latency_pace.h"

namespace torchshare {

/// Keeps what jobs have promised about the latency of their requests: from their answers, a LatencyPace sets the pace
/// of lower jobs. Of several jobs, the highest one's holds. Not thread-safe.
class LatencyKeeper {
 public:
  /// `keep`: promises of ended jobs.
  LatencyKeeper(std::size_t keep, Gate& gate, Timeline& timeline) : keep_(keep), gate_(gate), timeline_(timeline) {}

  void promise(const LiveJob& job, const LatencyTarget& target);
  /// Called when a job has answered a request that had come at `arrived`.
  void answered(const JobTable& jobs, const LiveJob& job, std::chrono::nanoseconds arrived,
                std::chrono::nanoseconds now);
  void end(JobId job) noexcept;
  /// Empty if the job has promised nothing, or if it is not kept any more.
  std::optional<LatencyStats> stats(JobId job) const;

 private:
  struct Promise {
    LatencyPace pace;
    bool has_ended = false;
  };

  const std::size_t keep_;
  Gate& gate_;
  Timeline& timeline_;
  std::map<JobId, Promise> promises_;
};

}  // namespace torchshare
