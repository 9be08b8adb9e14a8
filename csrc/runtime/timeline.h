#pragma once

#include <concepts>
#include <deque>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "model/event.h"

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
  /// `capacity`: events per log. Throws std::invalid_argument if it is 0.
  explicit Timeline(std::size_t capacity);

  void record(Event event) noexcept { shared_.record(std::move(event)); }
  /// Records the event that `make` returns, or drops it if `make` finds no memory.
  template <std::invocable Make>
  void record(Make make) noexcept {
    try {
      shared_.record(make());
    } catch (const std::bad_alloc&) {
      shared_.drop();
    }
  }
  /// A new log, which lives as long as the timeline.
  EventLog& open_log();
  /// A copy of all events, in the order of their ends.
  std::vector<Event> events() const;
  /// How many events were dropped.
  std::size_t dropped() const;

 private:
  const std::size_t capacity_;
  EventLog shared_;
  mutable std::mutex mutex_;  // guards logs_
  std::deque<EventLog> logs_;
};

}  // namespace torchshare
