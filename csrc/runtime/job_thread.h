#pragma once

#include <memory>

#include "device/device.h"
#include "gate/op_context.h"
#include "memory/memory_meter.h"

namespace torchshare {

/// Makes the calling thread a job's: priority, intra-op threads, autograd on this thread alone, the op hook on, its
/// memory counted where there is a meter.
/// The destructor gives all of it back. Same thread.
class JobThread {
 public:
  JobThread(Device& device, OpContext& job, Priority priority, int intra_op_threads,
            std::shared_ptr<MemoryMeter> memory);
  ~JobThread();
  JobThread(const JobThread&) = delete;  // bound to a thread
  JobThread& operator=(const JobThread&) = delete;

 private:
  const std::unique_ptr<PriorityScope> priority_;  // first, so that OpenMP workers inherit it
  const bool autograd_multithreading_;
  const ContextScope context_;
  const MemoryScope memory_;
};

}  // namespace torchshare
