#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "model/op_profile.h"
#include "model/op_trace.h"
#include "policy/admission.h"

namespace torchshare {

/// A job to replay: its ops as they ran alone.
struct ReplayJob {
  Priority priority = Priority::kSecondary;
  int threads = 1;  ///< of an op
  OpTrace trace = {};
};

/// The machine.
struct ReplayOptions {
  int cores = 1;
  bool device_priority = true;                          ///< the primary's threads first, as SCHED_IDLE does
  std::chrono::nanoseconds shortest_gap{0};             ///< that the gate hears of
  std::chrono::nanoseconds wake_latency{0};             ///< from the opening of a gap to who waits for it
  std::chrono::nanoseconds switch_interval{5'000'000};  ///< after which the interpreter lock must be handed over
};

/// What a job did until the first job was through its trace.
struct Replayed {
  std::vector<double> step_ends;  ///< ns
  std::uint64_t ops = 0;
  std::chrono::nanoseconds waited{0};  ///< at the gate
};

/// Runs recorded ops of several jobs together in virtual time, with a gate policy between them.
///
/// Note [What a replay knows]
/// Between ops a job computes in Python, on one core and under the one interpreter lock, or waits for input on none; in
/// an op it takes `threads` cores. Where cores are short they are shared evenly, or the primary has them first. The
/// gate is asked as the real one: with forecasts by place, and with competitors that are only seen when somebody looks.
/// What jobs do to each other's caches and memory bandwidth is not in the traces, and not here.
class OpReplay {
 public:
  /// Throws std::invalid_argument for jobs without ops and a machine without cores.
  OpReplay(std::vector<ReplayJob> jobs, std::unique_ptr<GatePolicy> policy, const ReplayOptions& options);

  /// Until the first job is through its trace; the others begin theirs again as often as need be.
  std::vector<Replayed> run();

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
    Time left = 0;          // of the phase, as work
    bool has_lock = false;  // the interpreter's
    Time asks_at = 0;       // the lock or the gate, next
    Time arrived = 0;       // at the gate, or where the lock was asked for
    Time left_op_at = 0;
    std::uint64_t activity = 0;
    AdmissionRecord record{};
  };

  void learn(State& state);
  void begin_gap(State& state, Time now);
  void begin_python(State& state, Time now);
  GapForecast forecast(const State& state) const;
  void settle(Time now);
  bool advance(State& state, Time now);
  bool take_lock(State& state, Time now);
  bool ask(State& state, Time now);
  JobSnapshot snapshot(const State& state) const;
  const OpTrace::Op& op_of(const State& state) const { return state.job.trace.ops[state.op]; }
  std::vector<double> rates() const;

  std::unique_ptr<GatePolicy> policy_;
  ReplayOptions options_;
  std::vector<State> states_;
};

}  // namespace torchshare
