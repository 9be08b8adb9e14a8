#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/periodic_task.h"
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
  bool is_guess = false;                                 ///< `op` is that of other ops
  OpKind kind = OpKind::kUnknown;                        ///< of that op
  std::chrono::nanoseconds ahead{0};  ///< expected duration of launched work that the device has not finished
  UnitState unit = {};                ///< of a periodic job
  std::uint64_t job = 0;              ///< in the order in which jobs were added
};

/// The state that admission keeps of a job between decisions.
struct AdmissionRecord {
  QuietTimer quiet = {};
  bool waits = false;                        ///< it was refused and waits at the gate
  std::chrono::nanoseconds expected_end{0};  ///< of its last admitted op, less the units until then

  /// Called when the job was admitted with an op of that expected duration. `units`: see Admission.
  void admit(std::chrono::nanoseconds now, std::chrono::nanoseconds units, const Verdict& verdict,
             std::optional<std::chrono::nanoseconds> op) {
    waits = false;
    expected_end = now - units + verdict.backlog + op.value_or(std::chrono::nanoseconds(0));
  }
};

/// Asks a policy whether a job may start an op now. Pure: used by the gate with real time and by the op replay with
/// virtual time.
///
///     Admission admission(policy, standing, now);
///     for (each other job that admission.regards) admission.add(other's standing, record and snapshot);
///     Verdict verdict = admission.decide(own record and snapshot, waited);
class Admission {
 public:
  /// `units`: how long all units of periodic jobs that have ended took, in sum. Each may have delayed an op beside it
  /// by as much.
  Admission(const GatePolicy& policy, const Standing& standing, std::chrono::nanoseconds now,
            std::chrono::nanoseconds units = std::chrono::nanoseconds(0))
      : policy_(policy), standing_(standing), now_(now), units_(units) {}

  /// False for jobs that do not affect the decision.
  bool regards(const Standing& other) const { return policy_.regards(standing_, other); }
  void add(const Standing& standing, AdmissionRecord& record, const JobSnapshot& seen);
  Verdict decide(const AdmissionRecord& record, const JobSnapshot& self, std::chrono::nanoseconds waited) const;

 private:
  std::chrono::nanoseconds left_of(const AdmissionRecord& record) const;
  Unit unit_of(const JobSnapshot& job) const;

  const GatePolicy& policy_;
  const Standing standing_;
  const std::chrono::nanoseconds now_;
  const std::chrono::nanoseconds units_;
  std::vector<Competitor> competitors_;
  bool is_concerned_ = false;
};

}  // namespace torchshare
