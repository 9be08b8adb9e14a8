#pragma once

#include <memory>

#include "device/device.h"
#include "gate/op_context.h"

namespace torchshare {

/// Makes the calling thread a job's: priority, intra-op threads, autograd on this thread alone, the op hook on.
/// The destructor gives all of it back. Same thread.
class JobThread {
 public:
  JobThread(Device& device, OpContext& job, int intra_op_threads);
  ~JobThread();
  JobThread(const JobThread&) = delete;  // bound to a thread
  JobThread& operator=(const JobThread&) = delete;

 private:
  const std::unique_ptr<PriorityScope> priority_;  // first, so that OpenMP workers inherit it
  const bool autograd_multithreading_;
  const ContextScope context_;
};

}  // namespace torchshare
