#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/job_id.h"

namespace torchshare {

/// The kinds of timeline entries. Spans have a length; states and decisions are instants.
enum class EventKind : std::uint8_t { kStep, kSubBatch, kInput, kWait, kState, kDecision };

/// One entry of the timeline. Times are nanoseconds of the device's clock.
struct Event {
  std::chrono::nanoseconds begin;
  std::chrono::nanoseconds end;
  JobId job;
  EventKind kind;
  std::uint32_t index;  ///< of the step or sub-batch; 0 for other kinds
  std::string detail;   ///< the new state, or the decision with its inputs; empty for spans
};

constexpr std::string_view to_string(EventKind kind) {
  constexpr std::string_view kNames[] = {"step", "sub_batch", "input", "wait", "state", "decision"};
  return kNames[static_cast<int>(kind)];
}

constexpr bool is_span(EventKind kind) {
  return kind < EventKind::kState;
}

}  // namespace torchshare
