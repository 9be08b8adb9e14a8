#pragma once

#include <ATen/core/Generator.h>

#include "gate/op_watch.h"
#include "gate/slot.h"
#include "memory/owned_memory.h"

namespace torchshare {

/// What the op hook knows of the job whose thread it runs on.
class OpContext {
 public:
  OpContext(Priority priority, at::Generator generator) : slot_(priority), generator_(std::move(generator)) {}
  virtual ~OpContext() = default;
  OpContext(const OpContext&) = delete;  // its thread points at it
  OpContext& operator=(const OpContext&) = delete;

  /// The job's own CPU random generator; ops draw from it instead of from the process-wide default.
  const at::Generator& generator() const { return generator_; }
  /// The same on the job's device, where that has generators of its own; else undefined.
  const at::Generator& device_generator() const { return device_generator_; }
  const Slot& slot() const { return slot_; }
  /// An op went over the job's memory budget: throws what the job's language has for it, or leaves it at `error`.
  virtual void refuse_memory(const BudgetExceeded&) {}
  /// Of the job's thread; see ThreadPriority.
  virtual void raise_priority() {}
  virtual void lower_priority() {}

 protected:
  friend class Pass;
  friend class Ungated;
  /// Called before an op when `attention` is set: waits its turn, parks, or throws to unwind the job.
  virtual void attend() = 0;

  Slot slot_;
  std::unique_ptr<OpWatch> watch_;  // null where nobody wants to know how long ops are
  at::Generator device_generator_{};
  std::shared_ptr<MemoryOwner> memory_;  // null where nobody wants to know
  bool checks_owners_ = false;           // refuse tensors of other jobs: on streams of their own, they may not be ready

 private:
  at::Generator generator_;
  int depth_ = 0;  // ops inside ops; touched by the job's thread only
};

/// The permission to run one op, held while it runs. An op inside an op runs on the outer one's pass.
class [[nodiscard]] Pass {
 public:
  /// Waits or throws as the gate says. `context` may be null: the thread belongs to no job.
  /// `call` has `signature()` and `text()`, see OpCall.
  template <class Call>
  Pass(OpContext* context, const Call& call) : context_(context) {
    if (context_ == nullptr) {
      return;
    }
    if (context_->depth_ == 0) {
      if (context_->checks_owners_) [[unlikely]] {
        call.check_owners(*context_->memory_);
      }
      if (context_->watch_ != nullptr) [[unlikely]] {
        context_->watch_->arrive(call);
      }
      if (context_->slot_.attention.load(std::memory_order_relaxed) != 0) [[unlikely]] {
        context_->attend();
      }
      context_->slot_.enter();
      if (context_->watch_ != nullptr) [[unlikely]] {
        context_->watch_->begin();
      }
    }
    ++context_->depth_;
  }
  ~Pass() {
    if (context_ != nullptr && --context_->depth_ == 0) {
      leave();
    }
  }
  Pass(const Pass&) = delete;  // one op, one pass
  Pass& operator=(const Pass&) = delete;

 private:
  void leave() {
    if (context_->watch_ == nullptr) [[likely]] {
      context_->slot_.leave();
    } else {
      context_->watch_->end();
    }
  }

  OpContext* const context_;
};

/// Runs an op on a pass. What goes over the job's memory budget is unwound in the job's own language.
template <class Call, class Run>
decltype(auto) run_op(OpContext* context, const Call& call, Run run) {
  const Pass pass(context, call);
  try {
    return run();
  } catch (const BudgetExceeded& error) {
    if (context != nullptr) {
      context->refuse_memory(error);
    }
    throw;
  }
}

/// The context of the calling thread, or null. The one global of this project. See Note [Free exit].
extern thread_local constinit OpContext* current_context;

/// Makes `context` the calling thread's and switches the op hook on, until the destructor. Same thread.
class ContextScope {
 public:
  explicit ContextScope(OpContext& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;  // bound to a thread
  ContextScope& operator=(const ContextScope&) = delete;
};

/// Takes the calling thread out of its job until the destructor: ops are not gated, and draw from the process's random
/// state. For tracing, which runs none. Same thread; a thread without a job stays without.
class ContextPause {
 public:
  ContextPause();
  ~ContextPause();
  ContextPause(const ContextPause&) = delete;  // bound to a thread
  ContextPause& operator=(const ContextPause&) = delete;

 private:
  OpContext* const context_;
};

/// Ops of the calling thread are not gated, until the destructor, and the thread has ordinary priority; to others, its
/// job is outside of any op. Nothing else changes. For work of the process that a job happens to do, and that others
/// wait for. Same thread.
class Ungated {
 public:
  Ungated() : context_(current_context) {
    if (context_ != nullptr) {
      context_->raise_priority();
      ++context_->depth_;  // as if inside an op that has no end in sight
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
