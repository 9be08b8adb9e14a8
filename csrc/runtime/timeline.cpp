#include "runtime/timeline.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace torchshare {

void EventLog::record(Event event) noexcept {
  std::lock_guard lock(mutex_);
  if (events_.size() == capacity_) {
    events_.pop_front();
    ++dropped_;
  }
  try {
    events_.push_back(std::move(event));
  } catch (const std::bad_alloc&) {
    ++dropped_;
  }
}

void EventLog::drop() noexcept {
  std::lock_guard lock(mutex_);
  ++dropped_;
}

void EventLog::copy_to(std::vector<Event>& events) const {
  std::lock_guard lock(mutex_);
  events.insert(events.end(), events_.begin(), events_.end());
}

std::size_t EventLog::dropped() const {
  std::lock_guard lock(mutex_);
  return dropped_;
}

Timeline::Timeline(std::size_t capacity) : capacity_(capacity), shared_(capacity) {
  if (capacity == 0) {
    throw std::invalid_argument("timeline_capacity must be at least 1, got 0");
  }
}

EventLog& Timeline::open_log() {
  std::lock_guard lock(mutex_);
  return logs_.emplace_back(capacity_);
}

std::vector<Event> Timeline::events() const {
  std::vector<Event> events;
  shared_.copy_to(events);
  std::lock_guard lock(mutex_);
  for (const EventLog& log : logs_) {
    log.copy_to(events);
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.end < b.end; });
  return events;
}

std::size_t Timeline::dropped() const {
  std::lock_guard lock(mutex_);
  std::size_t dropped = shared_.dropped();
  for (const EventLog& log : logs_) {
    dropped += log.dropped();
  }
  return dropped;
}

}  // namespace torchshare
