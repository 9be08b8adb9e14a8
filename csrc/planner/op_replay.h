#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "model/op_profile.h"
#include "model/op_trace.h"
#include "model/periodic_task.h"
#include "policy/admission.h"

namespace torchshare {

/// A job to replay: its op trace, recorded alone.
struct ReplayJob {
  Priority priority = Priority::kSecondary;
  int threads = 1;  ///< cores that an op uses
  OpTrace trace = {};
  std::optional<PeriodicTask> task = {};  ///< the trace is one unit of a periodic job
  std::chrono::nanoseconds first_release{0};
};

/// The machine to replay on.
struct ReplayOptions {
  int cores = 1;
  bool device_priority = true;                          ///< the primary's threads have precedence, as with SCHED_IDLE
  std::chrono::nanoseconds shortest_gap{0};             ///< shorter gaps are not announced to the gate
  std::chrono::nanoseconds wake_latency{0};             ///< from the beginning of a gap until a waiting job runs
  std::chrono::nanoseconds switch_interval{5'000'000};  ///< after which the GIL is handed over
  std::chrono::nanoseconds blocking_allowed{0};         ///< see Gate::set_blocking_allowed
  std::optional<std::chrono::nanoseconds> until = {};   ///< where the replay ends; empty: with the first job's trace
};

/// The progress of a job until the end of the replay.
struct Replayed {
  struct Unit {
    std::chrono::nanoseconds release;
    std::chrono::nanoseconds end;
  };

  std::vector<double> step_ends;  ///< ns
  std::uint64_t ops = 0;
  std::chrono::nanoseconds waited{0};  ///< at the gate
  std::vector<Unit> units = {};        ///< of a periodic job, those that have ended
};

/// Replays recorded ops of several jobs together in virtual time, under a gate policy.
///
/// Note [What a replay knows]
/// Between ops a job computes in Python, on one core while holding the GIL, or waits for input on none; in an op it
/// uses `threads` cores. If there are too few cores they are shared evenly, or the primary gets them first. Policies
/// are asked through Admission, as in the real gate: with forecasts by place, and with competitors that are observed
/// only when a job asks. Contention for caches and memory bandwidth is not modelled.
class OpReplay {
 public:
  /// Throws std::invalid_argument for jobs without ops or a machine without cores.
  OpReplay(std::vector<ReplayJob> jobs, std::unique_ptr<GatePolicy> policy, const ReplayOptions& options);

  /// Runs until the first job has finished its trace, or until `until`; jobs repeat theirs as often as needed, periodic
  /// ones once per period. Calls `poll` every few milliseconds, which may throw to end it.
  std::vector<Replayed> run(const std::function<void()>& poll = [] {});

 private:
  using Time = double;  // ns

  enum class Phase { kIdle, kPython, kAtGate, kInside };

  struct Expected {
    OpTime duration;
    OpTime gap;
  };

  struct State {
    ReplayJob job;
    std::unordered_map<std::uint64_t, Expected> expected{};  // by context
    Replayed done{};
    std::size_t op = 0;  // in the trace
    std::size_t step = 0;
    Phase phase = Phase::kIdle;
    Time left = 0;          // work left in the phase
    bool has_lock = false;  // the GIL
    Time asks_at = 0;       // when it next asks for the GIL or at the gate
    Time arrived = 0;       // when it arrived at the gate, or asked for the GIL
    Time left_op_at = 0;
    std::uint64_t activity = 0;
    AdmissionRecord record{};
    std::chrono::nanoseconds release{0};  // of its unit, or of the next one
    bool in_unit = false;
    Time unit_began = 0;
  };

  void learn(State& state);
  void begin_gap(State& state, Time now);
  void begin_python(State& state, Time now);
  GapForecast forecast(const State& state) const;
  bool has_ended(Time now) const;
  void end_unit(State& state, Time now);
  void settle(Time now, const std::function<void()>& poll);
  bool advance(State& state, Time now);
  bool take_lock(State& state, Time now);
  bool ask(State& state, Time now);
  JobSnapshot snapshot(const State& state) const;
  const OpTrace::Op& op_of(const State& state) const { return state.job.trace.ops[state.op]; }
  std::vector<double> rates() const;

  std::unique_ptr<GatePolicy> policy_;
  ReplayOptions options_;
  std::vector<State> states_;
  std::chrono::nanoseconds units_{0};  // see Admission
  std::uint64_t rounds_ = 0;           // since the beginning
};

}  // namespace torchshare
