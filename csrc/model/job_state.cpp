#include "torchshare/values.h"

namespace torchshare {

bool can_become(JobState from, JobState to) {
  switch (from) {
    case JobState::kPending:
      return to == JobState::kDelayed || to == JobState::kRunning || to == JobState::kCancelled;
    case JobState::kDelayed:
      return to == JobState::kRunning || to == JobState::kCancelled;
    case JobState::kRunning:
      return to == JobState::kSuspended || is_terminal(to);
    case JobState::kSuspended:
      return to == JobState::kRunning || to == JobState::kCancelled;
    default:
      return false;
  }
}

std::string_view to_string(JobState state) {
  switch (state) {
    case JobState::kPending:
      return "pending";
    case JobState::kDelayed:
      return "delayed";
    case JobState::kRunning:
      return "running";
    case JobState::kSuspended:
      return "suspended";
    case JobState::kFinished:
      return "finished";
    case JobState::kFailed:
      return "failed";
    case JobState::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace torchshare
