#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include "runtime/job_table.h"
#include "sharing/auto_sharing.h"

namespace torchshare {

/// The jobs that wait for their start, once their predecessors have ended. With `max_concurrent`, a job takes one of
/// that many places from its start to its end, also while it is suspended, but not while it is spilled; when it is
/// restored, it waits for memory only. Jobs whose start rule holds get the places in order of priority, then of
/// arrival; a place is kept for one whose thread has not asked yet. Automatic jobs come last: AutoSharing chooses among
/// them for the places that are left. Not thread-safe.
class StartQueue {
 public:
  /// Throws std::invalid_argument for no place.
  StartQueue(JobTable& jobs, std::optional<std::size_t> max_concurrent);

  // Around a job's wait for its start.
  void enter(LiveJob& job);
  void leave(LiveJob& job);

  /// The starts that are due, and sets each job's `retry_at`. With `follows`, another rank decides about all jobs that
  /// may have to wait.
  AutoSharing::Orders decide(std::chrono::nanoseconds now, bool follows) const;
  std::size_t free_places() const;
  /// Whether a job's start depends on the steps of others.
  bool counts_steps() const;

 private:
  std::vector<LiveJob*> in_order() const;

  JobTable& jobs_;
  const std::optional<std::size_t> max_concurrent_;
  int inside_ = 0;
};

}  // namespace torchshare
