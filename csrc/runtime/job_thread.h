#pragma once

#include <memory>

#include "device/device.h"
#include "gate/op_context.h"
#include "memory/owned_memory.h"

namespace torchshare {

/// Makes the calling thread a job's: priority, intra-op threads, autograd on this thread alone, the op hook on, its
/// memory counted where it has an owner.
/// The destructor gives all of it back. Same thread.
class JobThread {
 public:
  JobThread(Device& device, const Seat& seat, OpContext& job, int intra_op_threads,
            std::shared_ptr<MemoryOwner> memory);
  ~JobThread();
  JobThread(const JobThread&) = delete;  // bound to a thread
  JobThread& operator=(const JobThread&) = delete;

  DeviceScope& device() { return *device_; }

 private:
  const std::unique_ptr<DeviceScope> device_;  // first, so that OpenMP workers inherit it
  const bool autograd_multithreading_;
  const ContextScope context_;
  const MemoryScope memory_;
};

}  // namespace torchshare
