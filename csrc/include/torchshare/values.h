#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The terms of the project as types. Input is text, output is checked values.

namespace torchshare {

/// The protection of a job: ten levels, `kPrimary` first. Converted to the system's own numbers once, in device/.
enum class Priority : std::uint8_t { kPrimary = 0, kSecondary = 1, kLowest = 9 };

/// True if a job of priority `a` takes precedence over one of priority `b`.
constexpr bool outranks(Priority a, Priority b) {
  return a < b;
}

/// Reads "primary", "secondary" or "level-0" (= primary) to "level-9". Throws std::invalid_argument.
Priority parse_priority(std::string_view text);
std::string to_string(Priority priority);

/// How a device orders the threads of jobs below the primary: on a CPU, `kIdle` is SCHED_IDLE, below every thread of
/// the machine; `kNice` is a niceness of 10, about a tenth of an ordinary thread's share; `kAuto` is `kNice` where
/// other processes keep the processors busy, else `kIdle`. `kNone`: jobs are not ordered. A GPU orders streams unless
/// `kNone`.
enum class DevicePriority : std::uint8_t { kAuto, kIdle, kNice, kNone };

/// Reads "auto", "idle", "nice" or "none". Throws std::invalid_argument.
DevicePriority parse_device_priority(std::string_view text);
std::string_view to_string(DevicePriority priority);

/// The life of a job: pending -> delayed -> running <-> suspended -> finished | failed | cancelled.
enum class JobState : std::uint8_t { kPending, kDelayed, kRunning, kSuspended, kFinished, kFailed, kCancelled };

constexpr bool is_terminal(JobState state) {
  return state >= JobState::kFinished;
}

/// True if a job in state `from` may change to state `to`.
bool can_become(JobState from, JobState to);
std::string_view to_string(JobState state);

/// Options of gate policies.
struct GatePolicyOptions {
  /// Time that a higher job must be quiet before a lower one may enter; without it, a busy primary is not protected.
  std::chrono::nanoseconds grace = std::chrono::microseconds(200);
  /// An op that has waited this long is admitted regardless of the policy.
  std::optional<std::chrono::nanoseconds> max_wait = {};
  /// Predicted time of the work that a lower job may have launched and not finished, on an asynchronous device.
  std::optional<std::chrono::nanoseconds> run_ahead = {};
};

}  // namespace torchshare
