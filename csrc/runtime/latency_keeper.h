#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <set>

#include "gate/gate.h"
#include "runtime/job_table.h"
#include "runtime/pace_rules.h"
#include "sharing/latency_pace.h"

namespace torchshare {

/// Keeps what jobs have promised about the latency of their requests: from their answers, a LatencyPace sets the pace
/// of lower jobs. Of several jobs, the highest ones' hold. Not thread-safe.
class LatencyKeeper {
 public:
  /// `keep`: promises of ended jobs.
  LatencyKeeper(std::size_t keep, Gate& gate, Timeline& timeline) : timeline_(timeline), promises_(keep, gate) {}

  /// False if a job has promised anything.
  bool empty() const { return promises_.empty(); }
  void promise(const JobTable& jobs, const LiveJob& job, const LatencyTarget& target, std::chrono::nanoseconds now);
  /// Called when a job has answered a request, or found one that its client had given up.
  void answered(const JobTable& jobs, const LiveJob& job, const JobMessage& answer);
  void end(JobId job, std::chrono::nanoseconds now) noexcept {
    promises_.end(job, now);
    outranked_.erase(job);
  }
  std::optional<LatencyStats> stats(JobId job) const { return promises_.stats(job); }

 private:
  /// False while another job outranks this one. Records when that changes.
  bool keeps(const JobTable& jobs, const LiveJob& job, const LatencyTarget& target, std::chrono::nanoseconds now);

  Timeline& timeline_;
  PaceRules<LatencyPace> promises_;
  std::set<JobId> outranked_;  // jobs whose promise the timeline calls not kept
};

}  // namespace torchshare
