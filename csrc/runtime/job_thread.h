#pragma once

#include <memory>

#include "device/device.h"
#include "gate/op_context.h"
#include "memory/owned_memory.h"

namespace torchshare {

/// Makes the calling thread a job's: priority, intra-op threads, autograd on this thread alone, no autocast
/// cache, the op hook on, its
/// memory counted where it has an owner.
/// The destructor gives all of it back. Same thread.
class JobThread {
 public:
  JobThread(Device& device, ThreadPriority& priority, const Seat& seat, OpContext& job, int intra_op_threads,
            std::shared_ptr<MemoryOwner> memory);
  ~JobThread();
  JobThread(const JobThread&) = delete;  // bound to a thread
  JobThread& operator=(const JobThread&) = delete;

  DeviceScope& device() { return *device_; }

 private:
  const PriorityScope priority_;  // first, so that OpenMP workers inherit it
  const std::unique_ptr<DeviceScope> device_;
  const bool autograd_multithreading_;
  const bool autocast_cache_;
  const ContextScope context_;
  const MemoryScope memory_;
};

/// The calling thread becomes a job's, to its very end: what it drops on its way out of the job is part of that.
void become_jobs_thread();
bool is_jobs_thread();

/// As at::set_num_threads, one thread at a time: after a fork, torch makes its pool anew in the first call, and a
/// second one at that time finds none ("Invalid thread pool").
void set_intra_op_threads(int threads);

}  // namespace torchshare
