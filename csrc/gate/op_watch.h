#pragma once

#include <atomic>
#include <exception>
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

/// How a job's ops are watched.
struct WatchOptions {
  bool record = false;                       ///< time every op and keep the trace, not only what the gate needs
  std::chrono::nanoseconds shortest_gap{0};  ///< shorter gaps are not worth waking others for
  std::vector<OpProfile> known = {};         ///< measured before
};

/// How well the gaps of a job were used. Times are sums.
struct GapStats {
  std::uint64_t ops = 0;
  std::uint64_t unknown_ops = 0;          ///< whose duration or gap was not known yet
  std::chrono::nanoseconds capacity{0};   ///< expected length of the gaps: the sum of SG
  std::uint64_t gaps_opened = 0;          ///< announced to lower jobs, with a forecast
  std::uint64_t gaps_filled = 0;          ///< in which a lower job was admitted, with or without a forecast
  std::uint64_t returns_into_filler = 0;  ///< it returned while a lower job was inside an op
  std::chrono::nanoseconds cost{0};       ///< how much longer than their mean its own ops then took
  std::chrono::nanoseconds filled{0};     ///< duration of its ops in the gaps of others
};

/// Follows the ops of one job on its own thread, learns how long the ops and the gaps between them take, and tells the
/// gate: before an op how long it will take, before a long gap when it began. `stats` from any thread, the rest from
/// the job's own.
///
/// Note [Two stages]
/// Measuring stage: an op or gap at a place that is not known yet is timed. Once it is known, only gaps that are long
/// enough to fill are timed, and a sample of the rest so that the forecast follows changes; most ops do not read the
/// clock. A job that may have to wait itself is always timed: it has the time.
/// On an asynchronous device, times are the device's, and there is only the measuring stage and the sample: the
/// duration of a lower job's op is predicted from its place alone.
class OpWatch {
 public:
  OpWatch(Slot& slot, Gate& gate, Clock& clock, WatchOptions options);

  /// The job's ops are launched on `stream` of an asynchronous device. Before the first op.
  void follow(const std::shared_ptr<DeviceStream>& stream);
  /// Releases the stream. After the last op.
  void unfollow() noexcept;

  template <class Call>
  void arrive(const Call& call) {
    OpChain::Place& place = advance(call.signature());
    if (place.profile.text.empty() && place.profile.duration.count > 0) {
      place.profile.text = call.text();  // an op that is seen only once needs no text
      place.kind = op_kind(place.profile.text);
    }
    slot_.kind.store(place.kind, std::memory_order_relaxed);
  }
  /// Admitted; enters the op.
  void begin();
  /// Leaves the op. An error of the device is thrown at the next `arrive`: this runs in destructors.
  void end() noexcept;

  // Around a wait for input, which may contain ops.
  void begin_idle(std::chrono::nanoseconds now);
  void end_idle(std::chrono::nanoseconds now);
  /// The job has its next input: a step begins.
  void begin_batch() { restarts_ = true; }
  void end_step();

  /// The longest op that was timed, within 19 %; 0 if none was. On the job's own thread.
  std::chrono::nanoseconds longest_op() const {
    return durations_.quantile(1, 1).value_or(std::chrono::nanoseconds(0));
  }
  /// The gap after the last op, at its place; zeros while it is not known. On the job's own thread.
  GapForecast next_gap();
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
  LogHistogram<> durations_;  // of all ops: what to expect of an unknown one
  OpTrace trace_;
  std::unique_ptr<DeviceTimes> times_;               // null on a synchronous device
  std::unique_ptr<RunAhead> ahead_;                  // the same
  std::exception_ptr failure_;                       // of the device, at the end of the last op
  bool gap_wanted_ = false;                          // the gap after the last op is to be timed on the device
  std::optional<std::chrono::nanoseconds> now_;      // if the clock was read since `arrive`
  std::optional<std::chrono::nanoseconds> left_at_;  // end of the last op, if this gap is timed
  std::optional<std::chrono::nanoseconds> begin_;    // of the op, if it is timed
  std::chrono::nanoseconds gap_{0};
  std::chrono::nanoseconds idle_{0};                    // of the gap
  std::optional<std::chrono::nanoseconds> idle_since_;  // while it waits for input
  bool was_idle_ = false;                               // in this gap
  bool restarts_ = false;                               // the next op is the first of a batch
  bool lower_ = false;                                  // the op may have had to wait
  bool sampled_ = false;                                // the op and the gap after it are timed even if known
  bool overlapped_ = false;                             // it returned while a lower job was inside
  bool published_ = false;

  // One writer.
  struct Counters {
    std::atomic<std::uint64_t> ops{0}, unknown_ops{0}, gaps_opened{0}, gaps_filled{0}, returns_into_filler{0};
    std::atomic<std::int64_t> capacity{0}, cost{0}, filled{0};  // ns
  };
  Counters counters_;
};

}  // namespace torchshare
