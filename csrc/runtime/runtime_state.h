#pragma once

#include <memory>

#include "device/device.h"
#include "gate/gate.h"
#include "runtime/coordinator.h"
#include "runtime/memory_shares.h"
#include "runtime/stall_watch.h"
#include "runtime/timeline.h"
#include "torchshare/runtime.h"

namespace torchshare {

/// The state that all jobs of one runtime share. Outlives the runtime if a job was given up.
struct RuntimeState {
  /// `the_options.shortest_gap` must be set if the policy forecasts.
  RuntimeState(std::shared_ptr<Device> the_device, std::unique_ptr<GatePolicy> policy, RuntimeOptions the_options)
      : options(std::move(the_options)),
        device(std::move(the_device)),
        timeline(options.timeline_capacity, options.keep),
        gate(std::move(policy), device->clock()),
        coordinator(device->clock(), timeline, gate, options),
        stall_watch(device->clock()),
        memory_shares(*device) {}

  std::chrono::nanoseconds now() const { return device->clock().now(); }
  /// The priority that the device gives a job.
  Priority priority_of(Priority priority) const {
    return options.device_priority == DevicePriority::kNone ? Priority::kPrimary : priority;
  }

  const RuntimeOptions options;
  const std::shared_ptr<Device> device;
  Timeline timeline;
  Gate gate;
  Coordinator coordinator;
  StallWatch stall_watch;
  MemoryShares memory_shares;
};

}  // namespace torchshare
