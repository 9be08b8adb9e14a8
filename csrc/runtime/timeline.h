#pragma once

#include <chrono>
#include <concepts>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "model/event.h"
#include "torchshare/values.h"

namespace torchshare {

/// A bounded buffer of events: when it is full, the oldest is dropped; without memory, the newest. Any thread.
class EventLog {
 public:
  explicit EventLog(std::size_t capacity) : capacity_(capacity) {}

  void record(Event event) noexcept;
  /// Counts an event that could not be made.
  void drop() noexcept;
  /// Appends a copy of its events, in the order of recording.
  void copy_to(std::vector<Event>& events) const;
  std::size_t size() const;
  /// How many events were dropped.
  std::size_t dropped() const;

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;  // guards events_, dropped_
  std::deque<Event> events_;
  std::size_t dropped_ = 0;
};

/// The events of a runtime: one log of states and decisions, and one log per job, written by its own thread, so that no
/// job waits for another. Any thread.
class Timeline {
 public:
  /// `capacity`: events per log; `keep`: logs of ended jobs, the last ones. Throws std::invalid_argument if `capacity`
  /// is 0.
  explicit Timeline(std::size_t capacity, std::size_t keep = 20);

  void record(Event event) noexcept { shared_.record(std::move(event)); }
  void record_state(JobId job, JobState state, std::chrono::nanoseconds at) noexcept {
    record({at, at, job, EventKind::kState, 0, std::string(to_string(state))});
  }
  /// Records a decision about a job, in the words that `describe` returns, or drops it if there is no memory for them.
  template <std::invocable Describe>
  void record_decision(JobId job, std::chrono::nanoseconds at, Describe describe) noexcept {
    try {
      record({at, at, job, EventKind::kDecision, 0, describe()});
    } catch (const std::bad_alloc&) {
      shared_.drop();
    }
  }
  /// A new log. Its events are part of the timeline until it is closed and `keep` others are closed after it.
  std::shared_ptr<EventLog> open_log();
  /// Called when a job has ended: it records nothing any more.
  void close_log(const std::shared_ptr<EventLog>& log) noexcept;
  /// A copy of all events, in the order of their ends.
  std::vector<Event> events() const;
  /// How many events were dropped, with those of logs that are not kept.
  std::size_t dropped() const;

 private:
  const std::size_t capacity_;
  const std::size_t keep_;
  EventLog shared_;
  mutable std::mutex mutex_;  // guards the fields below
  std::list<std::shared_ptr<EventLog>> open_;
  std::list<std::shared_ptr<EventLog>> closed_;  // the last ones, the newest at the end
  std::size_t dropped_ = 0;                      // with the logs that are not kept
};

}  // namespace torchshare
