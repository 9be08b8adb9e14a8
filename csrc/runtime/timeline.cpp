#include "runtime/timeline.h"

#include <stdexcept>
#include <utility>

namespace torchshare {

Timeline::Timeline(std::size_t capacity) : capacity_(capacity) {
  if (capacity == 0) {
    throw std::invalid_argument("timeline_capacity is 0 events: expected at least 1");
  }
}

void Timeline::record(Event event) {
  std::lock_guard lock(mutex_);
  if (events_.size() == capacity_) {
    events_.pop_front();
    ++dropped_;
  }
  events_.push_back(std::move(event));
}

std::vector<Event> Timeline::events() const {
  std::lock_guard lock(mutex_);
  return {events_.begin(), events_.end()};
}

std::size_t Timeline::dropped() const {
  std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace torchshare
