#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"
#include "gate/gate.h"
#include "hook/op_context.h"
#include "memory/owned_memory.h"
#include "runtime/autocast_cache.h"
#include "runtime/job_parts.h"
#include "runtime/language_binding.h"

namespace torchshare {

/// A place at the gate for a thread that answers a job's requests, beside the job's own thread: at the job's priority,
/// with the job's memory and stream, and a random state of its own. One thread at a time.
///
/// Note [Serving threads]
/// The handlers of a server run on threads that it, not the job, has started. While one works for the job, its ops are
/// gated as the job's own: a lower job waits until no thread of the job is inside an op, and the threads of one job do
/// not wait for each other. What stops the job's own thread (a suspension, a hold, another job's fork) stops them, too;
/// they read it from that thread's slot. Places stay with the gate between two requests, marked as idle, because
/// joining it takes a lock for which a thread of idle priority may have to be waited.
class ServingThread final : public OpContext {
 public:
  ServingThread(const JobParts& job, OpContext& own, at::Generator generator, std::shared_ptr<MemoryOwner> memory,
                std::shared_ptr<DeviceStream> stream, at::Generator device_generator);

  const std::shared_ptr<MemoryOwner>& memory() const { return memory_; }
  const std::shared_ptr<DeviceStream>& stream() const { return stream_; }
  void set_idle(bool idle) { job_.runtime.gate.set_idle(slot_, idle); }
  /// Waits until the device has done what the job has launched.
  void synchronize();

  void yield_point() override;
  void refuse_memory(const BudgetExceeded& error) override { language_->refuse_memory(error); }

 private:
  void handle_interrupts() override;

  const JobParts& job_;
  OpContext& own_;
  const std::unique_ptr<LanguageBinding> language_;
  const std::shared_ptr<DeviceStream> stream_;
  const Gate::Membership member_;
};

/// The places of one job. Any thread.
class ServingThreads {
 public:
  ServingThreads(const JobParts& job, OpContext& own) : job_(job), own_(own) {}

  /// Called when the job's body begins.
  void open(std::shared_ptr<MemoryOwner> memory, std::shared_ptr<DeviceStream> stream, at::Generator device_generator);
  /// Called when the job's body ends. Threads that still work for it keep their places until they are given back.
  void close();
  /// Throws std::runtime_error if the job does not run.
  std::unique_ptr<ServingThread> take();
  void give_back(std::unique_ptr<ServingThread> thread);

 private:
  const JobParts& job_;
  OpContext& own_;
  std::mutex mutex_;  // guards what follows
  bool is_open_ = false;
  std::vector<std::unique_ptr<ServingThread>> free_;
  std::uint64_t made_ = 0;
  std::shared_ptr<MemoryOwner> memory_;
  std::shared_ptr<DeviceStream> stream_;
  at::Generator device_generator_;
};

/// The calling thread works for a job until the destructor. Its operating-system priority stays. Same thread; the job
/// must outlive it.
class ServingScope {
 public:
  /// Throws std::runtime_error if the job does not run.
  ServingScope(ServingThreads& threads, int intra_op_threads);
  ~ServingScope();
  ServingScope(const ServingScope&) = delete;  // bound to a thread
  ServingScope& operator=(const ServingScope&) = delete;

  void synchronize() { thread_->synchronize(); }

 private:
  ServingThreads& threads_;
  std::unique_ptr<ServingThread> thread_;
  const int intra_op_threads_;
  const bool autograd_multithreading_;
  const NoAutocastCache no_autocast_cache_;
  const std::unique_ptr<ThreadScope> on_stream_;
  std::unique_ptr<ContextScope> context_;
  std::unique_ptr<MemoryScope> memory_scope_;
};

}  // namespace torchshare
