#include "device/cuda/sm_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace torchshare {
namespace {

CUdevResource all_of(CUdevice device) {
  CUdevResource all{};
  const Driver& driver = Driver::get();
  driver.check(driver.device_get_resource(device, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
  return all;
}

CUgreenCtx make_context(CUdevice device, CUdevResource resource) {
  const Driver& driver = Driver::get();
  CUdevResourceDesc description = nullptr;
  driver.check(driver.describe_resource(&description, &resource, 1), "cuDevResourceGenerateDesc");
  CUgreenCtx context = nullptr;
  driver.check(driver.green_context_create(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM),
               "cuGreenCtxCreate");
  return context;
}

/// Parts that have no multiprocessor in common.
class Layout {
 public:
  explicit Layout(CUdevice device) : device_(device), rest_(all_of(device)) {}

  bool has_free(int asked) const {
    return std::any_of(free_.begin(), free_.end(), [&](const SmPart* each) { return each->asked == asked; });
  }
  int rest() const { return static_cast<int>(rest_.sm.smCount); }
  /// The most that a job may have.
  int most() const {
    int most = rest();
    for (const SmPart* each : free_) {
      most = std::max(most, each->count);
    }
    return most;
  }

  /// Null if so many are not left.
  const SmPart* take(int count) {
    const SmPart* part = take_free([&](const SmPart& each) { return each.asked == count; });
    part = part == nullptr ? split(count) : part;
    return part == nullptr ? take_free([&](const SmPart& each) { return each.count >= count; }) : part;
  }
  void give_back(const SmPart* part) { free_.push_back(part); }

 private:
  template <class IsOne>
  const SmPart* take_free(IsOne is_one) {
    const auto found = std::find_if(free_.begin(), free_.end(), [&](const SmPart* each) { return is_one(*each); });
    if (found == free_.end()) {
      return nullptr;
    }
    const SmPart* const part = *found;
    free_.erase(found);
    return part;
  }

  /// Null if the rest has fewer.
  const SmPart* split(int count) {
    if (rest() < count) {
      return nullptr;
    }
    const Driver& driver = Driver::get();
    if (!rest_can_be_split_) {
      const CUgreenCtx context = make_context(device_, rest_);
      driver.check(driver.green_context_get_resource(context, &rest_, CU_DEV_RESOURCE_TYPE_SM),
                   "cuGreenCtxGetDevResource");
      rest_can_be_split_ = true;
    }
    CUdevResource part{};
    CUdevResource rest{};
    unsigned int groups = 1;
    driver.check(driver.split_sms(&part, &groups, &rest_, &rest, 0, static_cast<unsigned int>(count)),
                 "cuDevSmResourceSplitByCount");
    if (groups != 1) {
      return nullptr;
    }
    const auto* const made = new SmPart{make_context(device_, part), count, static_cast<int>(part.sm.smCount)};
    rest_ = rest;
    rest_can_be_split_ = false;
    return made;
  }

  const CUdevice device_;
  std::vector<const SmPart*> free_{};
  CUdevResource rest_;
  bool rest_can_be_split_ = true;  // it is a context's
};

/// The multiprocessors of one GPU. Any thread.
class Multiprocessors {
 public:
  explicit Multiprocessors(c10::DeviceIndex device) {
    const Driver& driver = Driver::get();
    driver.check(driver.device_get(&device_, device), "cuDeviceGet");
    whole_ = static_cast<int>(all_of(device_).sm.smCount);
  }

  const SmPart* take(int count) {
    if (count < 1 || count > whole_) {
      throw std::invalid_argument(
          fmt::format("sms must be from 1 to {}, the number of this GPU, got {}", whole_, count));
    }
    std::lock_guard lock(mutex_);
    if (in_use_ == 0) {
      current_ = &layout_for(count);
    }
    const SmPart* const part = current_->take(count);
    if (part == nullptr) {
      throw std::invalid_argument(
          fmt::format("sms must be at most {}, which other jobs have left of this GPU's {} multiprocessors, got {}",
                      current_->most(), whole_, count));
    }
    ++in_use_;
    return part;
  }

  void give_back(const SmPart* part) {
    std::lock_guard lock(mutex_);
    current_->give_back(part);
    --in_use_;
  }

 private:
  Layout& layout_for(int count) {
    const auto first = [&](const auto& serves) {
      const auto found = std::find_if(layouts_.begin(), layouts_.end(), serves);
      return found == layouts_.end() ? nullptr : &*found;
    };
    Layout* found = first([&](const Layout& each) { return each.has_free(count); });
    found = found == nullptr ? first([&](const Layout& each) { return each.rest() >= count; }) : found;
    return found == nullptr ? layouts_.emplace_back(device_) : *found;
  }

  CUdevice device_ = 0;
  int whole_ = 0;
  std::mutex mutex_;  // guards every field below
  std::deque<Layout> layouts_;
  Layout* current_ = nullptr;
  int in_use_ = 0;
};

Multiprocessors& multiprocessors(c10::DeviceIndex device) {
  static std::mutex mutex;
  static auto* const all = new std::map<c10::DeviceIndex, Multiprocessors>;  // parts are given back at any time
  std::lock_guard lock(mutex);
  return all->try_emplace(device, device).first->second;
}

}  // namespace

SmPart::Held SmPart::take(c10::DeviceIndex device, int count) {
  Multiprocessors& all = multiprocessors(device);
  return {all.take(count), [&all](const SmPart* part) { all.give_back(part); }};
}

}  // namespace torchshare
