#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "gate/gate.h"
#include "model/periodic_task.h"
#include "model/request_times.h"

namespace torchshare {

/// What became of the units of a periodic job. Lateness and slack are times between the end of a unit and its deadline.
struct PeriodStats {
  std::uint64_t met = 0;
  std::uint64_t missed = 0;   ///< ended too late
  std::uint64_t skipped = 0;  ///< not begun, because their deadlines had passed
  TimeSpread response = {};   ///< from the release to the end
  TimeSpread slack = {};      ///< of those that were met
  std::chrono::nanoseconds worst_lateness{0};
  std::deque<std::string> misses = {};  ///< why the last ones were missed
};

/// The releases and units of a periodic job. On the job's own thread, but `stats` from any.
class PeriodicUnits {
 public:
  static constexpr std::size_t kKeptMisses = 20;

  PeriodicUnits(Gate& gate, Slot& slot) : gate_(gate), slot_(slot) {}
  PeriodicUnits(const PeriodicUnits&) = delete;  // the gate knows its slot
  PeriodicUnits& operator=(const PeriodicUnits&) = delete;

  /// Begins a loop over units, with the first release at `now`. `task.cost` may be 0: unknown.
  void open(const PeriodicTask& task, std::chrono::nanoseconds now);
  /// Ends the loop, if there is one.
  void close();
  bool is_open() const { return is_open_; }
  /// The release to wait for. Skips those whose deadlines have passed at `now`.
  std::chrono::nanoseconds next_release(std::chrono::nanoseconds now);
  /// `at_gate`: the time that the job has spent at the gate so far.
  void begin(std::chrono::nanoseconds now, std::chrono::nanoseconds at_gate);
  /// Returns how long the unit took, without its waits at the gate.
  std::chrono::nanoseconds end(std::chrono::nanoseconds now, std::chrono::nanoseconds at_gate);
  std::chrono::nanoseconds release() const { return release_; }
  std::chrono::nanoseconds began() const { return began_; }
  /// Empty before the first loop.
  std::optional<PeriodStats> stats() const;

 private:
  std::string cause(std::chrono::nanoseconds late, std::chrono::nanoseconds service,
                    std::chrono::nanoseconds waited) const;

  Gate& gate_;
  Slot& slot_;
  PeriodicTask task_;
  bool is_open_ = false;
  std::chrono::nanoseconds release_{0};  // of the unit, or of the next one
  std::chrono::nanoseconds began_{0};
  std::chrono::nanoseconds at_gate_{0};  // at the gate, before the unit
  std::string beside_;                   // the jobs that were inside an op as the unit began
  mutable std::mutex mutex_;             // guards stats_
  std::optional<PeriodStats> stats_;
};

}  // namespace torchshare
