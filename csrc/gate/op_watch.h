#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "gate/device_times.h"
#include "gate/gate.h"
#include "gate/run_ahead.h"
#include "gate/slot.h"
#include "model/log_histogram.h"
#include "model/op_chain.h"
#include "model/op_trace.h"

namespace torchshare {

/// How a job is watched.
struct WatchOptions {
  bool record = false;                       ///< time every op and keep the trace, instead of what the gate needs
  std::chrono::nanoseconds shortest_gap{0};  ///< the shortest that is worth waking others for
  std::vector<OpProfile> known = {};         ///< measured before
};

/// What the gaps of a job were good for. Times are sums.
struct GapStats {
  std::uint64_t ops = 0;
  std::uint64_t unknown_ops = 0;          ///< whose duration or gap was still to be measured
  std::chrono::nanoseconds capacity{0};   ///< of the gaps, as expected: the sum of SG
  std::uint64_t gaps_opened = 0;          ///< to lower jobs, with a forecast
  std::uint64_t gaps_filled = 0;          ///< in which a lower job was let in, with or without a forecast
  std::uint64_t returns_into_filler = 0;  ///< it came back while a lower job was inside an op
  std::chrono::nanoseconds cost{0};       ///< what its own ops then took above their mean
  std::chrono::nanoseconds filled{0};     ///< what its ops took in the gaps of others
};

/// Follows the ops of one job on its own thread, learns how long they and the gaps between them are, and tells the
/// gate: before an op how long it will be, before a long gap when that began. `stats` from any thread, the rest from
/// the job's.
///
/// Note [Two stages]
/// An op or gap whose place is not known yet is timed: the measuring stage, of that place. Once it is known, only gaps
/// that are long enough to be filled are timed, and a sample of the rest, so that the forecast follows; most ops cost
/// no look at the clock. A job that may have to wait itself is timed always: it has the time.
/// On a device that runs behind the host, times are the device's, and there is only the measuring stage and the sample:
/// what a lower job's op will take is told by its place alone.
class OpWatch {
 public:
  OpWatch(Slot& slot, Gate& gate, Clock& clock, WatchOptions options);

  /// The job's ops run on `stream`, behind the host. Before the first op.
  void follow(const std::shared_ptr<DeviceStream>& stream);
  /// No more: lets the stream go. After the last op.
  void unfollow();

  template <class Call>
  void arrive(const Call& call) {
    OpChain::Place& place = advance(call.signature());
    if (place.profile.text.empty() && place.profile.duration.count > 0) {
      place.profile.text = call.text();  // what is seen once is not worth a name
      place.kind = op_kind(place.profile.text);
    }
    slot_.kind.store(place.kind, std::memory_order_relaxed);
  }
  /// After the gate's word, inside.
  void begin();
  /// Leaves the op.
  void end();

  // Around a wait for input, which may have ops in it.
  void begin_idle(std::chrono::nanoseconds now);
  void end_idle(std::chrono::nanoseconds now);
  /// It has its next input: a step begins.
  void begin_batch() { restarts_ = true; }
  void end_step();

  GapStats stats() const;
  // Once the job has ended.
  std::vector<OpProfile> profiles() const { return chain_.profiles(); }
  std::size_t ops_per_step() const { return chain_.ops_per_step(); }
  const OpTrace& trace() const { return trace_; }

 private:
  OpChain::Place& advance(std::uint64_t signature);
  void count_idle(std::chrono::nanoseconds now);
  bool publish_gap(const OpTime& gap);
  void expect_op(const OpProfile& profile);
  void record(std::chrono::nanoseconds duration);
  void settle();
  void end_on_device(const OpProfile& profile);

  Slot& slot_;
  Gate& gate_;
  Clock& clock_;
  const WatchOptions options_;
  OpChain chain_;
  LogHistogram durations_;  // of all ops: what to expect of one that is not known
  OpTrace trace_;
  std::unique_ptr<DeviceTimes> times_;               // null where the device runs with the host
  std::unique_ptr<RunAhead> ahead_;                  // the same
  bool gap_wanted_ = false;                          // on the device, after the last op
  std::optional<std::chrono::nanoseconds> now_;      // as read since `arrive`
  std::optional<std::chrono::nanoseconds> left_at_;  // end of the last op, where this gap is timed
  std::optional<std::chrono::nanoseconds> begin_;    // of the op, where it is timed
  std::chrono::nanoseconds gap_{0};
  std::chrono::nanoseconds idle_{0};                    // of the gap
  std::optional<std::chrono::nanoseconds> idle_since_;  // while it waits for input
  bool was_idle_ = false;                               // in this gap
  bool restarts_ = false;                               // the next op is the first of a batch
  bool lower_ = false;                                  // of the op: it may have had to wait
  bool sampled_ = false;                                // the op and the gap after it are timed in any case
  bool overlapped_ = false;                             // since it came back while a lower job was inside
  bool published_ = false;

  // One writer.
  struct Counters {
    std::atomic<std::uint64_t> ops{0}, unknown_ops{0}, gaps_opened{0}, gaps_filled{0}, returns_into_filler{0};
    std::atomic<std::int64_t> capacity{0}, cost{0}, filled{0};  // ns
  };
  Counters counters_;
};

}  // namespace torchshare
