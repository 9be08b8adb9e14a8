#pragma once

#include <string>

#include "torchshare/errors.h"

namespace torchshare {

/// The language a job is written in: what it needs around a wait, and how it is unwound. This one is C++; the bindings
/// have Python's. Called on the job's own thread, but for `interrupt`.
class LanguageBinding {
 public:
  virtual ~LanguageBinding() = default;
  virtual void before_wait() {}
  virtual void after_wait() {}
  /// See Job::interrupt. From any thread.
  virtual bool interrupt() { return true; }
  /// False where the job must neither be unwound nor stopped for long right here: it holds what the whole process
  /// needs.
  virtual bool may_stop() { return true; }
  [[noreturn]] virtual void raise_cancelled(const std::string& message) { throw Cancelled(message); }
  /// See OpContext::refuse_memory.
  virtual void refuse_memory(const BudgetExceeded&) {}
};

}  // namespace torchshare
