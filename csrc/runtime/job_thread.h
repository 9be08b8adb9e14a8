#pragma once

#include <memory>

#include "device/device.h"
#include "hook/op_context.h"
#include "memory/owned_memory.h"
#include "runtime/autocast_cache.h"

namespace torchshare {

/// The calling thread runs its backward passes itself, and autocast caches nothing, until the destructor. Same thread.
///
/// Autograd has one worker thread per device for all jobs; a lower job that waits on it would block the primary's
/// backward.
class AutogradOnThread {
 public:
  AutogradOnThread();
  ~AutogradOnThread();
  AutogradOnThread(const AutogradOnThread&) = delete;  // bound to a thread
  AutogradOnThread& operator=(const AutogradOnThread&) = delete;

 private:
  const bool was_multithreaded_;
  const NoAutocastCache no_autocast_cache_;
};

/// Sets the calling thread up for a job: priority, intra-op threads, autograd, the op hook on, memory counted if it has
/// an owner. The destructor undoes all of it but the intra-op threads. Same thread.
class JobThread {
 public:
  JobThread(Device& device, ThreadPriority& priority, const DeviceRequest& request, OpContext& job,
            int intra_op_threads, std::shared_ptr<MemoryOwner> memory);
  JobThread(const JobThread&) = delete;  // bound to a thread
  JobThread& operator=(const JobThread&) = delete;

  DeviceScope& device() { return *device_; }

 private:
  const PriorityScope priority_;  // first, so that OpenMP workers inherit it
  const std::unique_ptr<DeviceScope> device_;
  const AutogradOnThread autograd_;
  const ContextScope context_;
  const MemoryScope memory_;
};

/// Marks the calling thread as a job's until the thread ends, so that destructors after the job's body are covered.
void become_jobs_thread();
bool is_jobs_thread();

/// at::set_num_threads under a lock: after a fork, torch recreates its thread pool in the first call, and a concurrent
/// second call fails ("Invalid thread pool").
void set_intra_op_threads(int threads);
/// The same, unless the calling thread has that number.
void change_intra_op_threads(int threads);

}  // namespace torchshare
