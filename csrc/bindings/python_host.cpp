#include "bindings/python_host.h"

#include <torch/csrc/Exceptions.h>

#include <utility>

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

/// torch's bindings turn this into an exception of `type`; anything else they would make a RuntimeError.
class PythonError : public torch::PyTorchError {
 public:
  PythonError(PyObject* type, std::string message) : PyTorchError(std::move(message)), type_(type) {}
  PyObject* python_type() override { return type_; }

 private:
  PyObject* type_;  // outlives the job that throws it
};

class PythonCancelled final : public PythonError {
  using PythonError::PythonError;
};

}  // namespace

PythonHost::PythonHost(py::object cancelled_type, py::object budget_exceeded_type)
    : cancelled_type_(cancelled_type.release().ptr()), budget_exceeded_type_(budget_exceeded_type.release().ptr()) {}

PythonHost::~PythonHost() {
  if (Py_IsInitialized() != 0) {
    const py::gil_scoped_acquire gil;
    Py_DECREF(cancelled_type_);
    Py_DECREF(budget_exceeded_type_);
  }
}

void PythonHost::before_wait() {
  released_ = PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr;
}

void PythonHost::after_wait() {
  if (released_ != nullptr) {
    PyEval_RestoreThread(std::exchange(released_, nullptr));
  }
}

void PythonHost::interrupt() {
  TORCH_INTERNAL_ASSERT(PyGILState_Check() != 0);
  if (const unsigned long thread = thread_.load(); thread != 0) {
    PyThreadState_SetAsyncExc(thread, cancelled_type_);
  }
}

void PythonHost::raise_cancelled(const std::string& message) {
  {
    const py::gil_scoped_acquire gil;
    PyThreadState_SetAsyncExc(thread_.load(), nullptr);  // interrupt() may have been quicker; once is enough
  }
  throw PythonCancelled(cancelled_type_, message);
}

void PythonHost::refuse_memory(const BudgetExceeded& error) {
  throw PythonError(budget_exceeded_type_, error.what_without_backtrace());
}

void PythonHost::run(Job& job, const py::function& function) {
  const py::gil_scoped_acquire gil;
  thread_.store(PyThread_get_thread_ident());
  try {
    job.checkpoint();  // a cancel from before `thread_` was set
    function();
  } catch (py::error_already_set& error) {
    PyThreadState_SetAsyncExc(thread_.exchange(0), nullptr);
    if (error.matches(cancelled_type_)) {
      throw Cancelled(error.what());
    }
    throw std::runtime_error(error.what());
  } catch (const PythonCancelled& error) {
    throw Cancelled(error.what());
  }
  PyThreadState_SetAsyncExc(thread_.exchange(0), nullptr);
}

}  // namespace torchshare::bindings
