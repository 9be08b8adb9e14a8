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

std::size_t EventLog::size() const {
  std::lock_guard lock(mutex_);
  return events_.size();
}

std::size_t EventLog::dropped() const {
  std::lock_guard lock(mutex_);
  return dropped_;
}

Timeline::Timeline(std::size_t capacity, std::size_t keep) : capacity_(capacity), keep_(keep), shared_(capacity) {
  if (capacity == 0) {
    throw std::invalid_argument("timeline_capacity must be at least 1, got 0");
  }
}

std::shared_ptr<EventLog> Timeline::open_log() {
  auto log = std::make_shared<EventLog>(capacity_);
  std::lock_guard lock(mutex_);
  return open_.emplace_back(std::move(log));
}

void Timeline::close_log(const std::shared_ptr<EventLog>& log) noexcept {
  std::list<std::shared_ptr<EventLog>> forgotten;  // destroyed without the lock: it may have a million events
  std::lock_guard lock(mutex_);
  if (const auto found = std::find(open_.begin(), open_.end(), log); found != open_.end()) {
    closed_.splice(closed_.end(), open_, found);
  }
  if (closed_.size() > keep_) {
    dropped_ += closed_.front()->size() + closed_.front()->dropped();
    forgotten.splice(forgotten.end(), closed_, closed_.begin());
  }
}

std::vector<Event> Timeline::events() const {
  std::vector<Event> events;
  shared_.copy_to(events);
  {
    std::lock_guard lock(mutex_);
    for (const auto* logs : {&closed_, &open_}) {
      for (const auto& log : *logs) {
        log->copy_to(events);
      }
    }
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.end < b.end; });
  return events;
}

std::size_t Timeline::dropped() const {
  std::lock_guard lock(mutex_);
  std::size_t dropped = shared_.dropped() + dropped_;
  for (const auto* logs : {&closed_, &open_}) {
    for (const auto& log : *logs) {
      dropped += log->dropped();
    }
  }
  return dropped;
}

}  // namespace torchshare
