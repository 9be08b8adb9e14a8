#pragma once

#include <pybind11/pybind11.h>

#include <atomic>

#include "bindings/process_code.h"
#include "runtime/host.h"
#include "runtime/job.h"

namespace torchshare::bindings {

/// The interpreter ends, or has ended: no other thread may use it any more. See Note [The end of the interpreter].
bool is_ending();

/// What a job in Python is unwound with.
struct PythonExceptions {
  pybind11::object cancelled;        ///< type: the job was cancelled
  pybind11::object budget_exceeded;  ///< type: memory was refused
  ProcessCode process_code;          ///< where the first must not be raised
};

/// A job written in Python. A wait gives up the interpreter lock where the thread has it (most ops come without it,
/// some come with it); a cancellation arrives as `exceptions.cancelled`: before an op, or, where none comes, before a
/// bytecode.
///
/// Note [The end of the interpreter]
/// A thread that was left behind may come back when the interpreter has begun to end. CPython 3.10 to 3.13 then ends
/// the thread by pthread_exit, which unwinds C++: a destructor that takes the interpreter lock, as torch's bindings
/// have them, or a `catch (...)` makes that an abort of the process. CPython 3.14 has such threads wait for ever, and
/// so do we: before they ask for the interpreter, where the unwinding reaches `run`, and in the terminate handler, from
/// the beginning of a job's thread to its end. What it would drop on its way out is left as it is.
class PythonHost final : public Host {
 public:
  explicit PythonHost(PythonExceptions exceptions);
  ~PythonHost() override;
  PythonHost(const PythonHost&) = delete;  // owns a Python reference
  PythonHost& operator=(const PythonHost&) = delete;

  void before_wait() override;
  void after_wait() override;
  /// Holds the interpreter lock from the caller's look at the job to here, or the exception could come twice.
  bool interrupt() override;
  bool may_stop() override;
  [[noreturn]] void raise_cancelled(const std::string& message) override;
  void refuse_memory(const BudgetExceeded& error) override;

  /// Calls `function(job)` as the job's body. Takes the interpreter lock.
  void run(Job& job, const pybind11::function& function);

 private:
  PythonExceptions exceptions_;
  PyThreadState* released_ = nullptr;     // the job's own thread only
  std::atomic<unsigned long> thread_{0};  // Python's name for the job's thread while it runs the body
};

}  // namespace torchshare::bindings
