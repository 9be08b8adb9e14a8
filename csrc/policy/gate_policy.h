#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "model/op_profile.h"
#include "model/time.h"
#include "policy/grace.h"
#include "torchshare/values.h"

namespace torchshare {

/// What decides, before anything has run, whether a job may have to wait for another.
struct Standing {
  Standing(Priority the_priority, bool periodic = false) : priority(the_priority), is_periodic(periodic) {}
  Priority priority;
  bool is_periodic;
};

/// A unit of a periodic job. Of two, the one that is due first comes first, and with equal deadlines the job that was
/// added first.
struct Unit {
  std::chrono::nanoseconds due = kNever;  ///< time until its deadline; kNever: there is no unit
  std::uint64_t job = 0;                  ///< in the order in which jobs were added
  bool exists() const { return due != kNever; }
  auto operator<=>(const Unit&) const = default;
};

/// A job that asks to enter an op.
struct Requester {
  Priority priority = Priority::kSecondary;
  std::optional<std::chrono::nanoseconds> op = {};  ///< expected duration of its op
  bool is_guess = false;                            ///< `op` is that of other ops, because its own is not known
  std::chrono::nanoseconds waited{0};               ///< so far, with this op
  OpKind kind = OpKind::kUnknown;                   ///< of its op
  std::chrono::nanoseconds ahead{0};  ///< expected duration of launched work that the device has not finished
  std::chrono::nanoseconds left{0};   ///< until the expected end of its last op, even if that has ended earlier
  Unit unit = {};                     ///< that it is in

  /// True for an op that has to run before its duration is known, and has waited for long: policies that forecast let
  /// it into any gap, or it would never be known.
  bool must_be_measured() const { return (is_guess || !op) && waited >= kLongestRetry; }
};

/// How long a job is expected to stay outside ops after the end of its last one. A mean of 0: unknown.
struct GapForecast {
  std::chrono::nanoseconds mean{0};
  std::chrono::nanoseconds spread{0};
};

/// Another job that the policy regards.
struct Competitor {
  Priority priority = Priority::kPrimary;
  bool inside = false;                              ///< it is in an op, or the device has unfinished work of it
  bool idle = false;                                ///< it waits for input
  bool answering = false;                           ///< it is in a request
  std::chrono::nanoseconds quiet{0};                ///< time it is known to have been outside any op
  GapForecast gap = {};                             ///< after its last op
  bool waits = false;                               ///< at the gate, with `op`
  std::optional<std::chrono::nanoseconds> op = {};  ///< as for the requester
  std::chrono::nanoseconds left{0};                 ///< as for the requester; meaningful while it is inside
  OpKind kind = OpKind::kUnknown;                   ///< of the op that it began last
  Unit unit = {};                                   ///< that it is in
  /// Time until others must have left the device, for its next unit; kNever: no release is known.
  std::chrono::nanoseconds until_release = kNever;
};

struct Verdict {
  bool admit;
  std::chrono::nanoseconds retry_after;  ///< when to ask again, if not admitted
  /// Time until the admitted op is expected to start, because others occupy the device.
  std::chrono::nanoseconds backlog{0};
};

/// Decides whether an op may start. Pure: the gate asks with the real clock, the op replay with a virtual one.
class GatePolicy {
 public:
  virtual ~GatePolicy() = default;
  /// True if an op of one job may have to wait for another job.
  virtual bool concerns(const Standing& mine, const Standing& other) const = 0;
  /// True if the other job is one of the competitors on which the decision depends.
  virtual bool regards(const Standing& mine, const Standing& other) const {
    return !outranks(mine.priority, other.priority);
  }
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
