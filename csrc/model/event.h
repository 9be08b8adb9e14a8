#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/job_id.h"

namespace torchshare {

/// The kinds of timeline entries. Spans have a length; states and decisions are instants. A span of memory is a step,
/// one of a request is from its arrival to its answer.
enum class EventKind : std::uint8_t { kStep, kSubBatch, kInput, kWait, kMemory, kRequest, kState, kDecision };

/// One entry of the timeline. Times are nanoseconds of the device's clock.
struct Event {
  std::chrono::nanoseconds begin;
  std::chrono::nanoseconds end;
  JobId job;
  EventKind kind;
  std::uint64_t number;  ///< of the step or sub-batch; the most bytes that the job held in the step; ns that a request
                         ///< was queued; 0 for other kinds
  std::string detail;    ///< what a wait is for, the new state, or the decision with its inputs; empty for other kinds
};

constexpr std::string_view to_string(EventKind kind) {
  constexpr std::string_view kNames[] = {"step",   "sub_batch", "input", "wait",
                                         "memory", "request",   "state", "decision"};
  return kNames[static_cast<int>(kind)];
}

constexpr bool is_span(EventKind kind) {
  return kind < EventKind::kState;
}

}  // namespace torchshare
