#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "policy/gate_policy.h"
#include "policy/quiet_timer.h"

namespace torchshare {

/// The observable state of a job at one instant: the gate reads it from a slot, the op replay from its own state.
struct JobSnapshot {
  std::uint64_t activity = 0;  ///< changes at both ends of each op and request, and when its device has no more work
  bool inside = false;
  bool idle = false;
  bool answering = false;
  GapForecast gap = {};                                  ///< announced by the job as it left its last op
  std::optional<std::chrono::nanoseconds> left_at = {};  ///< when that gap began; empty if only the device knows
  std::optional<std::chrono::nanoseconds> op = {};       ///< expected duration of its next op, or of the one it is in
  OpKind kind = OpKind::kUnknown;                        ///< of that op
  std::chrono::nanoseconds ahead{0};  ///< expected duration of launched work that the device has not finished
};

/// The state that admission keeps of a job between decisions.
struct AdmissionRecord {
  QuietTimer quiet = {};
  bool waits = false;                        ///< it was refused and waits at the gate
  std::chrono::nanoseconds expected_end{0};  ///< of its last admitted op

  /// Called when the job was admitted with an op of that expected duration.
  void admit(std::chrono::nanoseconds now, std::optional<std::chrono::nanoseconds> op) {
    waits = false;
    expected_end = now + op.value_or(std::chrono::nanoseconds(0));
  }
};

/// Asks a policy whether a job may start an op now. Pure: used by the gate with real time and by the op replay with
/// virtual time.
///
///     Admission admission(policy, priority, now);
///     for (each other job that admission.regards) admission.add(other's priority, record and snapshot);
///     Verdict verdict = admission.decide(own snapshot, waited);
class Admission {
 public:
  Admission(const GatePolicy& policy, Priority priority, std::chrono::nanoseconds now)
      : policy_(policy), priority_(priority), now_(now) {}

  /// False for jobs that this one outranks: they do not affect the decision.
  bool regards(Priority other) const { return !outranks(priority_, other); }
  void add(Priority priority, AdmissionRecord& record, const JobSnapshot& seen);
  Verdict decide(const JobSnapshot& self, std::chrono::nanoseconds waited) const;

 private:
  const GatePolicy& policy_;
  const Priority priority_;
  const std::chrono::nanoseconds now_;
  std::vector<Competitor> competitors_;
  bool is_concerned_ = false;
};

}  // namespace torchshare
