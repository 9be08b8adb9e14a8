#pragma once

#include <memory>

#include "device/device.h"
#include "hook/op_context.h"
#include "memory/owned_memory.h"
#include "runtime/autocast_cache.h"

namespace torchshare {

/// Makes the calling thread a job's: priority, intra-op threads, autograd on this thread alone, no autocast cache, the
/// op hook on, and its memory counted where it has an owner. The destructor undoes all of it. Same thread.
class JobThread {
 public:
  JobThread(Device& device, ThreadPriority& priority, const DeviceRequest& request, OpContext& job,
            int intra_op_threads, std::shared_ptr<MemoryOwner> memory);
  ~JobThread();
  JobThread(const JobThread&) = delete;  // bound to a thread
  JobThread& operator=(const JobThread&) = delete;

  DeviceScope& device() { return *device_; }

 private:
  const PriorityScope priority_;  // first, so that OpenMP workers inherit it
  const std::unique_ptr<DeviceScope> device_;
  const bool autograd_multithreading_;
  const NoAutocastCache no_autocast_cache_;
  const ContextScope context_;
  const MemoryScope memory_;
};

/// As at::set_num_threads, one thread at a time: after a fork, torch makes its pool anew in the first call, and a
/// second one at that time finds none ("Invalid thread pool").
void set_intra_op_threads(int threads);

}  // namespace torchshare
