#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/device.h"
#include "gate/gate.h"
#include "hook/op_context.h"
#include "memory/owned_memory.h"
#include "runtime/job_parts.h"
#include "runtime/job_thread.h"
#include "runtime/language_binding.h"
#include "runtime/stall_watch.h"

namespace torchshare {

/// What a job's threads have in common.
struct JobResources {
  std::shared_ptr<MemoryOwner> memory;   ///< null unless memory is metered or cached
  std::shared_ptr<DeviceStream> stream;  ///< null on a synchronous device
  at::Generator device_generator;        ///< undefined if the device has no generators
};

/// The side of the gate of a thread that answers a job's requests beside the job's own thread: at the job's priority,
/// with the job's memory and stream, and a random state of its own. Used by one thread at a time.
///
/// Note [Serving threads]
/// The handlers of a server run on threads that the server has started, not the job. While one works for the job, its
/// ops are gated as the job's own: a lower job waits until no thread of the job is inside an op, and the threads of one
/// job do not wait for each other. A suspension, a hold and another job's fork stop these threads, too: they read the
/// interrupts of the job's own slot. A ServingThread stays a member of the gate between two requests, marked as idle,
/// because joining the gate takes a lock that a thread of idle priority may hold. Meanwhile the thread has the priority
/// of the job's own, if the process may restore its former one. A thread that the job itself has started has it anyway.
class ServingThread final : public OpContext {
 public:
  ServingThread(const JobParts& job, OpContext& own, at::Generator generator, JobResources resources);

  const std::shared_ptr<MemoryOwner>& memory() const { return memory_; }
  /// The thread launches its work on the job's stream, until the scope's destructor; null on a synchronous device.
  std::unique_ptr<ThreadScope> use_stream() { return stream_ == nullptr ? nullptr : stream_->use(); }
  /// The thread's priority, which is the job's in a PriorityScope.
  ThreadPriority& priority() { return *priority_; }
  void set_answering(bool answers) {
    slot_.set_answering(answers);
    job_.runtime.gate.set_idle(slot_, !answers);
  }
  /// Waits until the device has done what the job has launched.
  void synchronize();

  void yield_point() override;
  void refuse_memory(const BudgetExceeded& error) override { language_->refuse_memory(error); }

 private:
  void handle_interrupts() override;

  const JobParts& job_;
  OpContext& own_;
  const std::unique_ptr<LanguageBinding> language_;
  const Gate::Membership member_;
  const std::unique_ptr<ThreadPriority> priority_;
  const StallWatch::Member watched_;
};

/// The ServingThreads of one job that no thread uses. Any thread.
class ServingThreads {
 public:
  ServingThreads(const JobParts& job, OpContext& own) : job_(job), own_(own) {}

  /// Called when the job's body begins.
  void open(JobResources resources);
  /// Called when the job's body ends. Those in use leave the gate when they are given back.
  void close();
  /// Empty unless the job's body runs.
  JobResources resources() const;
  /// Throws std::runtime_error if the job does not run.
  std::unique_ptr<ServingThread> take();
  void give_back(std::unique_ptr<ServingThread> thread);
  /// Gives those in use ordinary priority: the job is ending.
  void raise_for_good();

 private:
  const JobParts& job_;
  OpContext& own_;
  mutable std::mutex mutex_;               // guards what follows; no step of the job takes it
  std::optional<JobResources> resources_;  // empty unless the body runs
  std::vector<std::unique_ptr<ServingThread>> free_;
  std::vector<ServingThread*> in_use_;
  std::uint64_t made_ = 0;
};

/// The calling thread works for a job until the destructor. Same thread; the job must outlive it.
class ServingScope {
 public:
  /// Throws std::runtime_error if the job does not run.
  ServingScope(ServingThreads& threads, int intra_op_threads);
  ServingScope(const ServingScope&) = delete;  // bound to a thread
  ServingScope& operator=(const ServingScope&) = delete;

  void synchronize() { in_use_.thread->synchronize(); }
  const OpContext& context() const { return *in_use_.thread; }

 private:
  struct InUse {
    explicit InUse(ServingThreads& from);
    ~InUse();
    InUse(const InUse&) = delete;  // gives it back once
    InUse& operator=(const InUse&) = delete;

    ServingThreads& threads;
    std::unique_ptr<ServingThread> thread;
  };
  struct IntraOpThreads {
    explicit IntraOpThreads(int count);
    ~IntraOpThreads();
    IntraOpThreads(const IntraOpThreads&) = delete;  // bound to a thread
    IntraOpThreads& operator=(const IntraOpThreads&) = delete;

    const int former;
  };

  const InUse in_use_;
  const IntraOpThreads intra_op_threads_;
  std::optional<PriorityScope> priority_;
  const AutogradOnThread autograd_;
  const std::unique_ptr<ThreadScope> on_stream_;
  const ContextScope context_;
  const MemoryScope memory_;
};

}  // namespace torchshare
