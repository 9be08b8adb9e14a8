#pragma once

#include <cstdint>
#include <string_view>

namespace torchshare {

/// The life of a job: pending -> delayed -> running <-> suspended -> finished | failed | cancelled.
enum class JobState : std::uint8_t { kPending, kDelayed, kRunning, kSuspended, kFinished, kFailed, kCancelled };

constexpr bool is_terminal(JobState state) {
  return state >= JobState::kFinished;
}

/// True when the life above has an edge from `from` to `to`.
bool can_become(JobState from, JobState to);

std::string_view to_string(JobState state);

}  // namespace torchshare
