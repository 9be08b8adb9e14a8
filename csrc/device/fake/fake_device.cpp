#include "device/fake/fake_device.h"

namespace torchshare {

std::chrono::nanoseconds ManualClock::now() const {
  std::lock_guard lock(mutex_);
  return now_;
}

void ManualClock::advance(std::chrono::nanoseconds by) {
  std::lock_guard lock(mutex_);
  now_ += by;
}

void ManualClock::wait_until(std::condition_variable& wake, std::unique_lock<std::mutex>& lock,
                             std::chrono::nanoseconds deadline) {
  if (now() < deadline) {
    wake.wait_for(lock, std::chrono::milliseconds(1));
  }
}

class FakeDevice::Scope final : public PriorityScope {
 public:
  Scope(FakeDevice& device, Priority priority) : device_(device) {
    std::lock_guard lock(device_.mutex_);
    device_.held_[std::this_thread::get_id()] = priority;
  }
  ~Scope() override {
    std::lock_guard lock(device_.mutex_);
    device_.held_.erase(std::this_thread::get_id());
  }

 private:
  FakeDevice& device_;
};

std::unique_ptr<PriorityScope> FakeDevice::enter_priority(Priority priority) {
  return std::make_unique<Scope>(*this, priority);
}

std::map<std::thread::id, Priority> FakeDevice::held() const {
  std::lock_guard lock(mutex_);
  return held_;
}

}  // namespace torchshare
