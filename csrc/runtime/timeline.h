#pragma once

#include <deque>
#include <mutex>
#include <vector>

#include "model/event.h"

namespace torchshare {

/// What happened, in a bounded buffer: when it is full, the oldest entry goes. Any thread.
class Timeline {
 public:
  /// Throws std::invalid_argument when `capacity` is 0.
  explicit Timeline(std::size_t capacity);

  void record(Event event);
  /// A copy, in the order of recording.
  std::vector<Event> events() const;
  /// How many entries had to go.
  std::size_t dropped() const;

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;  // guards events_, dropped_
  std::deque<Event> events_;
  std::size_t dropped_ = 0;
};

}  // namespace torchshare
