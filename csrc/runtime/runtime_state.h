#pragma once

#include <memory>

#include "device/device.h"
#include "gate/gate.h"
#include "runtime/coordinator.h"
#include "runtime/memory_shares.h"
#include "runtime/stall_watch.h"
#include "runtime/timeline.h"

namespace torchshare {

/// The state that all jobs of one runtime share. Outlives the runtime if a job was given up.
struct RuntimeState {
  RuntimeState(std::shared_ptr<Device> the_device, std::unique_ptr<GatePolicy> policy, std::size_t timeline_capacity,
               std::size_t keep, std::optional<double> max_slowdown, std::optional<std::size_t> resident,
               std::chrono::nanoseconds the_shortest_gap, DevicePriority the_device_priority)
      : device(std::move(the_device)),
        shortest_gap(the_shortest_gap),
        device_priority(the_device_priority),
        timeline(timeline_capacity, keep),
        gate(std::move(policy), device->clock()),
        coordinator(device->clock(), timeline, gate, max_slowdown, resident),
        stall_watch(device->clock()),
        memory_shares(*device) {}

  std::chrono::nanoseconds now() const { return device->clock().now(); }
  /// The priority that the device gives a job.
  Priority priority_of(Priority priority) const {
    return device_priority == DevicePriority::kNone ? Priority::kPrimary : priority;
  }

  const std::shared_ptr<Device> device;
  const std::chrono::nanoseconds shortest_gap;  // shorter gaps are not filled
  const DevicePriority device_priority;
  Timeline timeline;
  Gate gate;
  Coordinator coordinator;
  StallWatch stall_watch;
  MemoryShares memory_shares;
};

}  // namespace torchshare
