#pragma once

#include <pybind11/pybind11.h>

#include <atomic>

#include "bindings/process_code.h"
#include "runtime/job.h"
#include "runtime/language_binding.h"

namespace torchshare::bindings {

/// True if the interpreter is finalizing or finalized: other threads must not use it any more.
bool is_ending();

/// The exceptions that unwind a job written in Python.
struct PythonExceptions {
  pybind11::object cancelled;        ///< type: the job was cancelled
  pybind11::object budget_exceeded;  ///< type: memory was refused
  ProcessCode process_code;          ///< where `cancelled` must not be raised
};

/// A job written in Python. A wait releases the GIL if the thread holds it (most ops come without it, some with it). A
/// cancellation is raised as `exceptions.cancelled`: before an op or, if none comes, before a bytecode.
///
/// Note [The end of the interpreter]
/// A thread that was given up may come back while the interpreter finalizes. CPython 3.10 to 3.13 then ends the thread
/// by pthread_exit, which unwinds C++: a destructor that takes the GIL, as in torch's bindings, or a `catch (...)`
/// turns that into an abort of the process. CPython 3.14 blocks such threads forever, and so do we: before they ask for
/// the GIL, when the unwinding reaches `run`, and in the terminate handler, from the beginning of a job's thread to its
/// end. What such a thread would drop is leaked.
class PythonBinding final : public LanguageBinding {
 public:
  explicit PythonBinding(PythonExceptions exceptions);
  ~PythonBinding() override;
  PythonBinding(const PythonBinding&) = delete;  // owns a Python reference
  PythonBinding& operator=(const PythonBinding&) = delete;

  void before_wait() override;
  void after_wait() override;
  /// The world must be stopped since the caller checked the job's state, or the exception could be raised twice.
  bool interrupt() override;
  bool may_stop() override;
  [[noreturn]] void raise_cancelled(const std::string& message) override;
  void refuse_memory(const BudgetExceeded& error) override;
  /// With the GIL.
  std::unique_ptr<LanguageBinding> for_thread() const override;

  /// Calls `function(job)` as the job's body. Takes the GIL.
  void run(RuntimeJob& job, const pybind11::function& function);

 private:
  /// Takes back what `interrupt` has set, unless it has been raised. In the job's thread, which is `thread`, with the
  /// GIL.
  void withdraw_interrupt(unsigned long thread);

  PythonExceptions exceptions_;
  PyThreadState* released_ = nullptr;     // the job's own thread only
  std::atomic<unsigned long> thread_{0};  // Python's id of the job's thread while it runs the body
  bool is_interrupted_ = false;           // changed while the world is stopped, or by the job's thread
};

}  // namespace torchshare::bindings
