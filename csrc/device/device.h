#pragma once

#include <memory>
#include <string_view>

#include "device/clock.h"
#include "model/priority.h"

namespace torchshare {

/// A priority that a thread holds; the destructor gives the former one back. Same thread as its maker.
class PriorityScope {
 public:
  virtual ~PriorityScope() = default;
};

/// The seam between the runtime and a machine: its clock and its priorities. Any thread.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual Clock& clock() = 0;
  /// Gives the calling thread, and threads that it starts from now on, the machine's form of `priority`.
  [[nodiscard]] virtual std::unique_ptr<PriorityScope> enter_priority(Priority priority) = 0;
};

/// Makes the device of that name: "auto" or "cpu". Throws std::invalid_argument.
std::shared_ptr<Device> make_device(std::string_view name);

}  // namespace torchshare
