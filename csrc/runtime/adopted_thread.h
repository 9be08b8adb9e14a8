#pragma once

#include "hook/op_context.h"

namespace torchshare {

/// The calling thread counts as one that a job has started, until the destructor: its random ops on the CPU draw from
/// the job's generator. Its ops are counted, not gated. Same thread. The job must outlive it.
class AdoptedThread {
 public:
  explicit AdoptedThread(OpContext& job) : context_(job), scope_(context_) {}
  AdoptedThread(const AdoptedThread&) = delete;  // bound to a thread
  AdoptedThread& operator=(const AdoptedThread&) = delete;

 private:
  class Ungated final : public OpContext {
   public:
    explicit Ungated(OpContext& job) : OpContext(job.slot(), job.generator()), job_(job) {
      slot_.interrupts = kCounted;
    }

   private:
    void handle_interrupts() override { job_.begin_adopted_op(); }

    OpContext& job_;
  };

  Ungated context_;
  const ContextScope scope_;
};

}  // namespace torchshare
