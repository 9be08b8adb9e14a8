#pragma once

#include "hook/op_context.h"

namespace torchshare {

/// The calling thread counts as one that a job has started, until the destructor: its random ops on the CPU draw from
/// the job's generator. Its ops are not gated. Same thread.
class AdoptedThread {
 public:
  explicit AdoptedThread(const OpContext& job) : context_(job), scope_(context_) {}
  AdoptedThread(const AdoptedThread&) = delete;  // bound to a thread
  AdoptedThread& operator=(const AdoptedThread&) = delete;

 private:
  class Ungated final : public OpContext {
   public:
    explicit Ungated(const OpContext& job) : OpContext(job.slot().priority, job.generator()) {}

   private:
    void attend() override {}
  };

  Ungated context_;
  const ContextScope scope_;
};

}  // namespace torchshare
