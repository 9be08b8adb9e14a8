#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "model/op_profile.h"
#include "torchshare/values.h"

namespace torchshare {

/// A job that asks to enter an op.
struct Requester {
  Priority priority = Priority::kSecondary;
  std::optional<std::chrono::nanoseconds> op = {};  ///< expected duration of its op
  std::chrono::nanoseconds waited{0};               ///< so far, with this op
  OpKind kind = OpKind::kUnknown;                   ///< of its op
  std::chrono::nanoseconds ahead{0};  ///< expected duration of launched work that the device has not finished
};

/// How long a job is expected to stay outside ops after the end of its last one. A mean of 0: unknown.
struct GapForecast {
  std::chrono::nanoseconds mean{0};
  std::chrono::nanoseconds spread{0};
};

/// Another job, which the requester does not outrank.
struct Competitor {
  Priority priority = Priority::kPrimary;
  bool inside = false;                              ///< it is in an op, or the device has unfinished work of it
  bool idle = false;                                ///< it waits for input
  bool answering = false;                           ///< it is in a request
  std::chrono::nanoseconds quiet{0};                ///< time it is known to have been outside any op
  GapForecast gap = {};                             ///< after its last op
  bool waits = false;                               ///< at the gate, with `op`
  std::optional<std::chrono::nanoseconds> op = {};  ///< as for the requester
  std::chrono::nanoseconds left{0};                 ///< expected remaining time of the op it is in
  OpKind kind = OpKind::kUnknown;                   ///< of the op that it began last
};

struct Verdict {
  bool admit;
  std::chrono::nanoseconds retry_after;  ///< when to ask again, if not admitted
};

/// Decides whether an op may start. Pure: the gate asks with the real clock, the op replay with a virtual one.
class GatePolicy {
 public:
  virtual ~GatePolicy() = default;
  /// True if an op of a job of priority `mine` may have to wait for a job of priority `other`.
  virtual bool concerns(Priority mine, Priority other) const = 0;
  /// True if its decisions depend on what other jobs do.
  virtual bool watches_others() const { return true; }
  /// True if the policy uses forecasts of ops and gaps.
  virtual bool forecasts() const { return false; }
  virtual Verdict decide(const Requester& requester, std::span<const Competitor> competitors) const = 0;
};

/// Makes the policy of that name. Throws std::invalid_argument that lists the names.
std::unique_ptr<GatePolicy> make_gate_policy(std::string_view name, const GatePolicyOptions& options);
std::vector<std::string_view> gate_policy_names();

}  // namespace torchshare
