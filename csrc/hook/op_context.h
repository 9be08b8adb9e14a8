#pragma once

#include <ATen/core/Generator.h>

#include <atomic>
#include <memory>
#include <string_view>

#include "device/device.h"
#include "gate/op_watch.h"
#include "gate/slot.h"
#include "memory/owned_memory.h"

namespace torchshare {

/// The job of the calling thread, as the op hook sees it.
class OpContext {
 public:
  OpContext(Priority priority, at::Generator generator) : slot_(priority), generator_(std::move(generator)) {}
  /// For another thread of a job.
  OpContext(const Slot& job, at::Generator generator)
      : slot_(job.priority, job.job), generator_(std::move(generator)) {}
  virtual ~OpContext() = default;
  OpContext(const OpContext&) = delete;  // its thread points at it
  OpContext& operator=(const OpContext&) = delete;

  /// The job's own CPU generator; ops draw from it instead of the process-wide default.
  const at::Generator& generator() const { return generator_; }
  /// The job's own generator on its device; undefined if the device has no generators.
  const at::Generator& device_generator() const { return device_generator_; }
  const Slot& slot() const { return slot_; }
  /// How many ops the job's threads have begun. Any thread.
  std::uint64_t ops_begun() const {
    return slot_.ops_begun() + adopted_ops_.load(std::memory_order_acquire) + served_ops();
  }
  /// The ops of threads that answer its requests.
  std::uint64_t served_ops() const { return served_ops_.load(std::memory_order_acquire); }
  void begin_served_op() { served_ops_.fetch_add(1, std::memory_order_release); }
  /// Called before an op of a thread that the job has started.
  void begin_adopted_op() { adopted_ops_.fetch_add(1, std::memory_order_release); }
  /// Called when an op exceeded the job's memory budget: throws the exception of the job's language, or returns to let
  /// `error` propagate.
  virtual void refuse_memory(const BudgetExceeded&) {}
  /// Called between ops where the thread can be stopped: parks, or throws to unwind the job.
  virtual void yield_point() {}
  /// The priority of the job's thread; see ThreadPriority.
  virtual void raise_priority() {}
  virtual void lower_priority() {}
  // Called around a wait, such as for the job's other ranks: meanwhile lower jobs may enter at once. On the job's own
  // thread.
  static constexpr std::string_view kForRanks = "collective";  ///< a reason to wait
  virtual void begin_wait(std::string_view /*reason*/) {}
  virtual void end_wait() {}

 protected:
  friend class Permit;
  friend class Ungated;
  /// Called before an op when `interrupts` is set: waits its turn, parks, or throws to unwind the job.
  virtual void handle_interrupts() = 0;
  /// True if ungated, or inside an op. On the job's own thread.
  bool is_ungated() const { return depth_ > 0; }

  Slot slot_;
  std::unique_ptr<OpWatch> watch_;  // null unless op timing is on
  at::Generator device_generator_{};
  std::shared_ptr<MemoryOwner> memory_;  // null unless memory is metered or cached
  // Null on a synchronous device. With a stream, tensors of other jobs are refused: their streams may not have written
  // them yet.
  std::shared_ptr<DeviceStream> stream_;

 private:
  at::Generator generator_;
  std::atomic<std::uint64_t> adopted_ops_{0};
  std::atomic<std::uint64_t> served_ops_{0};
  int depth_ = 0;  // of nested ops; used by the job's thread only
};

/// The permission to run one op, held while it runs. A nested op runs on the outer op's permit.
class [[nodiscard]] Permit {
 public:
  /// Waits until the gate admits the op, or throws. `context` may be null: the thread belongs to no job.
  /// `call` has `signature()` and `text()`, see OpCall.
  template <class Call>
  Permit(OpContext* context, const Call& call) : context_(context) {
    if (context_ == nullptr) {
      return;
    }
    if (context_->depth_ == 0) {
      if (context_->stream_ != nullptr) [[unlikely]] {
        context_->stream_->follow_current();
        call.check_owners(*context_->memory_);
      }
      if (context_->watch_ != nullptr) [[unlikely]] {
        context_->watch_->arrive(call);
      }
      if (context_->slot_.interrupts.load(std::memory_order_relaxed) != 0) [[unlikely]] {
        context_->handle_interrupts();
      }
      if (context_->watch_ != nullptr) [[unlikely]] {
        context_->watch_->begin();  // may throw the device's error
      }
      context_->slot_.enter();
    }
    ++context_->depth_;
  }
  ~Permit() {
    if (context_ != nullptr && --context_->depth_ == 0) {
      leave();
    }
  }
  Permit(const Permit&) = delete;  // of one op
  Permit& operator=(const Permit&) = delete;

 private:
  void leave() {
    if (context_->stream_ != nullptr) [[unlikely]] {
      context_->stream_->end_op();
    }
    if (context_->watch_ == nullptr) [[likely]] {
      context_->slot_.leave();
    } else {
      context_->watch_->end();
    }
  }

  OpContext* const context_;
};

/// Runs an op on a permit. If it exceeds the job's memory budget, the job's own language raises the error.
template <class Call, class Run>
decltype(auto) run_op(OpContext* context, const Call& call, Run run) {
  const Permit permit(context, call);
  try {
    return run();
  } catch (const BudgetExceeded& error) {
    if (context != nullptr) {
      context->refuse_memory(error);
    }
    throw;
  }
}

/// The context of the calling thread, or null. The only global of this project.
extern thread_local constinit OpContext* current_context;

/// Makes `context` the calling thread's and switches the op hook on, until the destructor. Same thread.
class ContextScope {
 public:
  explicit ContextScope(OpContext& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;  // bound to a thread
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  OpContext* const former_;
};

/// Takes the calling thread out of its job until the destructor: ops are not gated and draw from the process's random
/// state. For tracing, which runs no ops. Same thread; does nothing on a thread without a job.
class ContextPause {
 public:
  ContextPause();
  ~ContextPause();
  ContextPause(const ContextPause&) = delete;  // bound to a thread
  ContextPause& operator=(const ContextPause&) = delete;

 private:
  OpContext* const context_;
};

/// The calling thread's job waits for its other ranks until the destructor. Same thread; does nothing on a thread
/// without a job.
class WaitForRanks {
 public:
  WaitForRanks() : context_(current_context) {
    if (context_ != nullptr) {
      context_->begin_wait(OpContext::kForRanks);
    }
  }
  ~WaitForRanks() {
    if (context_ != nullptr) {
      context_->end_wait();
    }
  }
  WaitForRanks(const WaitForRanks&) = delete;  // bound to a thread
  WaitForRanks& operator=(const WaitForRanks&) = delete;

 private:
  OpContext* const context_;
};

/// Disables gating for the calling thread until the destructor, and gives it ordinary priority; its job counts as
/// outside any op. For process-wide work that a job does while other jobs wait for it. Same thread.
class Ungated {
 public:
  Ungated() : context_(current_context) {
    if (context_ != nullptr) {
      context_->raise_priority();
      ++context_->depth_;  // as if inside an outer op
    }
  }
  ~Ungated() {
    if (context_ != nullptr) {
      --context_->depth_;
      context_->lower_priority();
    }
  }
  Ungated(const Ungated&) = delete;  // bound to a thread
  Ungated& operator=(const Ungated&) = delete;

 private:
  OpContext* const context_;
};

}  // namespace torchshare
