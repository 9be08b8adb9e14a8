#pragma once

#include <pybind11/pybind11.h>

#include <atomic>

#include "runtime/host.h"
#include "runtime/job.h"

namespace torchshare::bindings {

/// A job written in Python. A wait gives up the interpreter lock where the thread has it (most ops come without it,
/// some come with it); a cancellation arrives as `cancelled_type`: before an op, or, where none comes, before a
/// bytecode.
class PythonHost final : public Host {
 public:
  PythonHost(pybind11::object cancelled_type, pybind11::object budget_exceeded_type);
  ~PythonHost() override;
  PythonHost(const PythonHost&) = delete;  // owns a Python reference
  PythonHost& operator=(const PythonHost&) = delete;

  void before_wait() override;
  void after_wait() override;
  /// Holds the interpreter lock from the caller's look at the job to here, or the exception could come twice.
  void interrupt() override;
  [[noreturn]] void raise_cancelled(const std::string& message) override;
  void refuse_memory(const BudgetExceeded& error) override;

  /// Calls `function` as the job's body. Takes the interpreter lock.
  void run(Job& job, const pybind11::function& function);

 private:
  PyObject* const cancelled_type_;        // a strong reference
  PyObject* const budget_exceeded_type_;  // the same
  PyThreadState* released_ = nullptr;     // the job's own thread only
  std::atomic<unsigned long> thread_{0};  // Python's name for the job's thread while it runs the body
};

}  // namespace torchshare::bindings
