#include "device/cuda/sm_part.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace torchshare {
namespace {

using Groups = std::vector<std::size_t>;  // ascending

/// The multiprocessors of one GPU. Any thread.
class Multiprocessors {
 public:
  explicit Multiprocessors(c10::DeviceIndex device) {
    const Driver& driver = Driver::get();
    driver.check(driver.device_get(&device_, device), "cuDeviceGet");
    CUdevResource all{};
    driver.check(driver.device_get_resource(device_, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
    unsigned int count = 0;
    const auto split = [&](CUdevResource* groups, CUdevResource* rest) {
      driver.check(driver.split_sms(groups, &count, &all, rest, 0, 1), "cuDevSmResourceSplitByCount");
    };
    split(nullptr, nullptr);  // only counts them
    groups_.resize(count);
    CUdevResource rest{};
    split(groups_.data(), &rest);
    groups_.resize(count);
    if (rest.sm.smCount > 0) {
      groups_.push_back(rest);
    }
    for (const CUdevResource& group : groups_) {
      whole_ += size(group);
    }
    in_use_.resize(groups_.size());
  }

  SmPart::Held take(int count) {
    if (count < 1 || count > whole_) {
      throw std::invalid_argument(
          fmt::format("sms must be from 1 to {}, the number of this GPU, got {}", whole_, count));
    }
    std::lock_guard lock(mutex_);
    Groups taken;
    int left = 0;
    for (std::size_t group = 0; group < groups_.size() && left < count; ++group) {
      if (!in_use_[group]) {
        taken.push_back(group);
        left += size(groups_[group]);
      }
    }
    if (left < count) {
      throw std::invalid_argument(
          fmt::format("sms must be at most {}, which other jobs have left of this GPU's {} multiprocessors, got {}",
                      left, whole_, count));
    }
    auto found = parts_.find(taken);
    if (found == parts_.end()) {
      found = parts_.emplace(taken, SmPart{make_context(taken), left}).first;
    }
    set_in_use(taken, true);
    return {&found->second, [this, taken](const SmPart*) {
              std::lock_guard giving_back(mutex_);
              set_in_use(taken, false);
            }};
  }

 private:
  static int size(const CUdevResource& group) { return static_cast<int>(group.sm.smCount); }

  void set_in_use(const Groups& groups, bool in_use) {
    for (const std::size_t group : groups) {
      in_use_[group] = in_use;
    }
  }

  CUgreenCtx make_context(const Groups& groups) {
    const Driver& driver = Driver::get();
    std::vector<CUdevResource> resources;
    for (const std::size_t group : groups) {
      resources.push_back(groups_[group]);
    }
    CUdevResourceDesc description = nullptr;
    driver.check(driver.describe_resource(&description, resources.data(), static_cast<unsigned int>(resources.size())),
                 "cuDevResourceGenerateDesc");
    CUgreenCtx context = nullptr;
    driver.check(driver.green_context_create(&context, description, device_, CU_GREEN_CTX_DEFAULT_STREAM),
                 "cuGreenCtxCreate");
    return context;
  }

  CUdevice device_ = 0;
  std::vector<CUdevResource> groups_;  // of one split
  int whole_ = 0;
  std::mutex mutex_;  // guards the fields below
  std::vector<bool> in_use_;
  std::map<Groups, SmPart> parts_;
};

Multiprocessors& multiprocessors(c10::DeviceIndex device) {
  static std::mutex mutex;
  static auto* const all = new std::map<c10::DeviceIndex, Multiprocessors>;  // parts are given back at any time
  std::lock_guard lock(mutex);
  return all->try_emplace(device, device).first->second;
}

}  // namespace

SmPart::Held SmPart::take(c10::DeviceIndex device, int count) {
  return multiprocessors(device).take(count);
}

}  // namespace torchshare
