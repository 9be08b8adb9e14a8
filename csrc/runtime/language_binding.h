#pragma once

#include <string>

#include "torchshare/errors.h"

namespace torchshare {

/// What depends on the language of a job: what to do around a wait, and how to unwind the job. This class is for C++;
/// the bindings derive Python's. Called on the job's own thread, except `interrupt`.
class LanguageBinding {
 public:
  virtual ~LanguageBinding() = default;
  virtual void before_wait() {}
  virtual void after_wait() {}
  /// See RuntimeJob::interrupt. From any thread.
  virtual bool interrupt() { return true; }
  /// False while the job must be neither unwound nor parked, because it holds a process-wide resource.
  virtual bool may_stop() { return true; }
  [[noreturn]] virtual void raise_cancelled(const std::string& message) { throw Cancelled(message); }
  /// See OpContext::refuse_memory.
  virtual void refuse_memory(const BudgetExceeded&) {}
};

}  // namespace torchshare
