#pragma once

#include <memory>
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
  /// For another thread that works for the job.
  virtual std::unique_ptr<LanguageBinding> for_thread() const { return std::make_unique<LanguageBinding>(); }
};

/// Runs `work`, which may block, without the language's lock, such as the GIL, and takes the lock again even if `work`
/// throws.
template <class Work>
void without_lock(LanguageBinding& language, Work work) {
  language.before_wait();
  try {
    work();
  } catch (...) {
    language.after_wait();
    throw;
  }
  language.after_wait();
}

}  // namespace torchshare
