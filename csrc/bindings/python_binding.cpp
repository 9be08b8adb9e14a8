#include "bindings/python_binding.h"

#include <cxxabi.h>
#include <torch/csrc/Exceptions.h>
#include <unistd.h>

#include <exception>
#include <utility>

#include "runtime/job_thread.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

/// torch's bindings translate this to an exception of `type`; anything else becomes a RuntimeError.
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

[[noreturn]] void wait_forever() {
  while (true) {
    pause();
  }
}

void wait_if_ending() {
  if (is_ending()) {
    wait_forever();
  }
}

std::terminate_handler others_terminate = nullptr;  // written once, before it can be called

/// See Note [The end of the interpreter].
bool wait_where_others_abort() {
  others_terminate = std::set_terminate([] {
    if (is_jobs_thread()) {
      wait_if_ending();
    }
    others_terminate();
  });
  return true;
}

/// The type's name. Not the message: `__str__` may raise in turn, and pybind would ask that exception's `__str__` again
/// and again. Python's side has kept the exception itself.
std::string name_of(const py::error_already_set& error) {
  return reinterpret_cast<const PyTypeObject*>(error.type().ptr())->tp_name;
}

/// Keeps no C++ object on the stack whose destructor would need the interpreter.
void call(const py::function& function, RuntimeJob& job) {
  PyObject* const handle = py::cast(job.shared_from_this()).release().ptr();
  PyObject* const result = PyObject_CallFunctionObjArgs(function.ptr(), handle, nullptr);
  Py_DECREF(handle);
  if (result == nullptr) {
    throw py::error_already_set();
  }
  Py_DECREF(result);
}

}  // namespace

bool is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() == 0 || Py_IsFinalizing() != 0;
#else
  return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
}

PythonBinding::PythonBinding(PythonExceptions exceptions) : exceptions_(std::move(exceptions)) {
  static const bool once = wait_where_others_abort();
  (void)once;
}

PythonBinding::~PythonBinding() {
  if (is_ending()) {
    exceptions_.cancelled.release();
    exceptions_.budget_exceeded.release();
    return;
  }
  const py::gil_scoped_acquire gil;
  exceptions_.cancelled = {};
  exceptions_.budget_exceeded = {};
}

void PythonBinding::before_wait() {
  released_ = PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr;
}

void PythonBinding::after_wait() {
  if (released_ != nullptr) {
    wait_if_ending();
    PyEval_RestoreThread(std::exchange(released_, nullptr));
  }
}

bool PythonBinding::interrupt() {
  const unsigned long thread = thread_.load();
  if (thread == 0) {
    return true;  // `run` checks before it calls the body
  }
  if (!exceptions_.process_code.raise_in(thread, exceptions_.cancelled)) {
    return false;
  }
  is_interrupted_ = true;
  return true;
}

bool PythonBinding::may_stop() {
  wait_if_ending();
  const py::gil_scoped_acquire gil;
  return !exceptions_.process_code.is_run_here();
}

void PythonBinding::raise_cancelled(const std::string& message) {
  {
    const py::gil_scoped_acquire gil;
    withdraw_interrupt(thread_.load());  // once is enough
  }
  throw PythonCancelled(exceptions_.cancelled.ptr(), message);
}

void PythonBinding::refuse_memory(const BudgetExceeded& error) {
  throw PythonError(exceptions_.budget_exceeded.ptr(), error.what_without_backtrace());
}

std::unique_ptr<LanguageBinding> PythonBinding::for_thread() const {
  return std::make_unique<PythonBinding>(exceptions_);
}

void PythonBinding::run(RuntimeJob& job, const py::function& function) {
  const py::gil_scoped_acquire gil;
  thread_.store(PyThread_get_thread_ident());
  try {
    job.yield_point();  // for a cancel before `thread_` was set
    call(function, job);
  } catch (const abi::__forced_unwind&) {
    wait_forever();
  } catch (py::error_already_set& error) {
    withdraw_interrupt(thread_.exchange(0));
    if (error.matches(exceptions_.cancelled)) {
      throw Cancelled(name_of(error));
    }
    throw std::runtime_error(name_of(error));
  } catch (const PythonCancelled& error) {
    throw Cancelled(error.what());
  }
  withdraw_interrupt(thread_.exchange(0));
}

void PythonBinding::withdraw_interrupt(unsigned long thread) {
  // Never without need: even null makes all threads look for an exception at each call from then on, and in a thread
  // that cProfile watches CPython 3.11 then looks for ever.
  if (std::exchange(is_interrupted_, false)) {
    PyThreadState_SetAsyncExc(thread, nullptr);
  }
}

}  // namespace torchshare::bindings
