#include "fakes/fake_device.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

namespace torchshare {

std::chrono::nanoseconds ManualClock::now() const {
  std::lock_guard lock(mutex_);
  return now_;
}

void ManualClock::advance(std::chrono::nanoseconds by) {
  std::lock_guard lock(mutex_);
  now_ += by;
  for (auto wait = waits_.begin(); wait != waits_.end() && wait->first <= now_; ++wait) {
    wait->second->notify_all();  // it is there: its thread needs the lock to leave
  }
}

void ManualClock::wait(EventCount& wake, std::uint32_t seen, std::chrono::nanoseconds deadline) {
  std::unique_lock lock(mutex_);
  if (now_ < deadline) {
    const auto own = waits_.emplace(deadline, &wake);
    lock.unlock();
    wake.wait(seen, kNever);
    lock.lock();
    waits_.erase(own);
  }
}

std::size_t ManualClock::waiting() const {
  std::lock_guard lock(mutex_);
  return waits_.size();
}

void FakeStream::launch(std::chrono::nanoseconds work) {
  std::lock_guard lock(mutex_);
  free_at_ = std::max(free_at_, clock_.now()) + work;
}

void FakeStream::launch_beside(std::chrono::nanoseconds work) {
  std::lock_guard lock(mutex_);
  other_free_at_ = std::max(other_free_at_, clock_.now()) + work;
}

void FakeStream::set_capturing(bool capturing) {
  std::lock_guard lock(mutex_);
  capturing_ = capturing;
}

std::size_t FakeStream::markers_recorded() const {
  std::lock_guard lock(mutex_);
  return markers_.size();
}

void FakeStream::fail() {
  std::lock_guard lock(mutex_);
  failed_at_ = clock_.now();
}

void FakeStream::check() const {
  std::lock_guard lock(mutex_);
  throw_if_failed();
}

void FakeStream::throw_if_failed() const {
  if (failed_at_) {
    throw std::runtime_error("the device failed");
  }
}

std::uint64_t FakeStream::append(std::vector<std::chrono::nanoseconds>& times) {
  std::lock_guard lock(mutex_);
  throw_if_failed();
  if (capturing_) {
    return 0;
  }
  times.push_back(std::max(free_at_, clock_.now()));
  return times.size();
}

DeviceStream::Marker FakeStream::passed() const {
  std::lock_guard lock(mutex_);
  const auto reached = failed_at_.value_or(clock_.now());
  return static_cast<Marker>(std::upper_bound(markers_.begin(), markers_.end(), reached) - markers_.begin());
}

bool FakeStream::has_work() const {
  std::lock_guard lock(mutex_);
  throw_if_failed();
  return capturing_ || free_at_ > clock_.now();
}

bool FakeStream::has_work_beside(std::uintptr_t /*waiting*/) const {
  std::lock_guard lock(mutex_);
  return other_free_at_ > clock_.now();
}

std::optional<std::chrono::nanoseconds> FakeStream::between(Stamp from, Stamp to) {
  std::lock_guard lock(mutex_);
  throw_if_failed();
  const auto end = stamps_.at(to - 1);
  const bool is_old = from + stamps() <= stamps_.size();
  return end <= clock_.now() && !is_old && !capturing_ ? std::optional(end - stamps_.at(from - 1)) : std::nullopt;
}

void FakeStream::synchronize() {
  EventCount never;
  const auto until = [&] {
    std::lock_guard own_lock(mutex_);
    throw_if_failed();
    return free_at_;
  }();
  while (clock_.now() < until) {
    clock_.wait(never, never.value(), until);
  }
}

void FakeGraph::begin_capture() {
  at::zeros({1}).fill_(1);
  stream_->set_capturing(true);
}

void FakeGraph::end_capture() {
  stream_->set_capturing(false);
  if (fails_) {
    throw std::runtime_error("the capture failed");
  }
}

class FakeDevice::Scope final : public DeviceScope {
 public:
  Scope(FakeDevice& device, Priority priority) : device_(device) {
    std::lock_guard lock(device_.mutex_);
    device_.held_[std::this_thread::get_id()] = priority;
    if (device_.is_asynchronous()) {
      device_.streams_[std::this_thread::get_id()] = stream_ = std::make_shared<FakeStream>(device_.clock_);
    }
  }
  ~Scope() override {
    std::lock_guard lock(device_.mutex_);
    device_.held_.erase(std::this_thread::get_id());
    device_.streams_.erase(std::this_thread::get_id());
  }
  std::shared_ptr<DeviceStream> stream() override { return stream_; }
  std::unique_ptr<DeviceGraph> make_graph() override {
    return stream_ != nullptr ? std::make_unique<FakeGraph>(stream_, device_.captures_fail_.load()) : nullptr;
  }

 private:
  FakeDevice& device_;
  std::shared_ptr<FakeStream> stream_;
};

std::unique_ptr<DeviceScope> FakeDevice::enter(const DeviceRequest& request) {
  return std::make_unique<Scope>(*this, request.priority);
}

void FakeDevice::check() const {
  if (lost_.load()) {
    throw std::runtime_error("device 'fake' is lost");
  }
}

std::map<std::thread::id, Priority> FakeDevice::held() const {
  std::lock_guard lock(mutex_);
  return held_;
}

FakeStream& FakeDevice::stream() {
  std::lock_guard lock(mutex_);
  return *streams_.at(std::this_thread::get_id());
}

}  // namespace torchshare
