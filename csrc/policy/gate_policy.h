#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "model/priority.h"

namespace torchshare {

/// What the gate knows of one other job that this policy makes a job wait for.
struct Rival {
  bool inside;                     ///< it is in an op now
  bool idle;                       ///< it said that it waits for input
  std::chrono::nanoseconds quiet;  ///< how long it has been seen outside any op
};

struct Verdict {
  bool admit;
  std::chrono::nanoseconds retry_after;  ///< when to ask again, where not admitted
};

/// Decides whether an op may start. Pure: the gate asks with the real clock, the simulator with a virtual one.
class GatePolicy {
 public:
  virtual ~GatePolicy() = default;
  /// True when an op of a job at `mine` may have to wait for a job at `other`.
  virtual bool concerns(Priority mine, Priority other) const = 0;
  virtual Verdict decide(std::span<const Rival> rivals) const = 0;
};

struct GatePolicyOptions {
  /// How long a higher job must be quiet before a lower one may enter; without it a busy primary is not protected.
  std::chrono::nanoseconds grace = std::chrono::microseconds(200);
};

/// Makes the policy of that name. Throws std::invalid_argument with the names there are.
std::unique_ptr<GatePolicy> make_gate_policy(std::string_view name, const GatePolicyOptions& options);
std::vector<std::string_view> gate_policy_names();

}  // namespace torchshare
