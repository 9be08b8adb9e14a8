#include "bindings/python_threads.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

namespace py = pybind11;

namespace torchshare::bindings {

#ifdef Py_GIL_DISABLED

namespace {

struct Call {
  const std::function<void()>& function;
  bool is_done = false;
  std::exception_ptr error = nullptr;
  std::vector<py::object> released = {};  // their destructors may run Python
};

Call* running = nullptr;  // written while the world is stopped

int call_once(PyObject* /*object*/, void* call) {
  running = static_cast<Call*>(call);
  try {
    running->function();
  } catch (...) {
    running->error = std::current_exception();
  }
  running->is_done = true;
  return 0;  // no further objects
}

}  // namespace

void with_world_stopped(const std::function<void()>& function) {
  const py::list visited;  // so that there is an object to visit, even after gc.freeze()
  Call call{function};
  // The only public function that stops the world and calls back. The visit of a heap may not go on after allocations
  // in it, as of frame objects, but it ends with the first object. Read in 3.13.5.
  PyUnstable_GC_VisitObjects(&call_once, &call);
  TORCH_INTERNAL_ASSERT(call.is_done);
  if (call.error) {
    std::rethrow_exception(call.error);
  }
}

PyThreadState* thread_state(unsigned long thread) {
  // PyThreadState_Next takes the lock of the list, which PyUnstable_GC_VisitObjects holds.
  PyThreadState* state = PyThreadState_Get();
  while (state->prev != nullptr) {
    state = state->prev;
  }
  while (state != nullptr && state->thread_id != thread) {
    state = state->next;
  }
  return state;
}

void set_async_exception(PyThreadState& thread, PyObject* type) {
  constexpr std::uintptr_t kAsyncException = 1U << 3;  // _PY_ASYNC_EXCEPTION_BIT of Python 3.13 and 3.14
  static_assert(PY_VERSION_HEX >= 0x030d0000 && PY_VERSION_HEX < 0x030f0000);
  Py_XINCREF(type);
  running->released.push_back(py::reinterpret_steal<py::object>(std::exchange(thread.async_exc, type)));
  std::atomic_ref(thread.eval_breaker).fetch_or(kAsyncException);
}

#else

void with_world_stopped(const std::function<void()>& function) {
  function();
}

PyThreadState* thread_state(unsigned long thread) {
  PyThreadState* state = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  while (state != nullptr && state->thread_id != thread) {
    state = PyThreadState_Next(state);
  }
  return state;
}

void set_async_exception(PyThreadState& thread, PyObject* type) {
  PyThreadState_SetAsyncExc(thread.thread_id, type);
}

#endif

py::object innermost_frame(PyThreadState& thread) {
  auto* const frame = reinterpret_cast<PyObject*>(PyThreadState_GetFrame(&thread));
  return frame == nullptr ? py::none() : py::reinterpret_steal<py::object>(frame);
}

std::vector<Place> stack_of(unsigned long thread) {
  std::vector<Place> places;
  with_world_stopped([&] {
    PyThreadState* const state = thread_state(thread);
    py::object frame = state == nullptr ? py::none() : innermost_frame(*state);
    for (; !frame.is_none(); frame = frame.attr("f_back")) {
      const py::object code = frame.attr("f_code");
      const py::object line = frame.attr("f_lineno");
      places.emplace_back(code.attr("co_filename"), line.is_none() ? 0 : line.cast<int>(), code.attr("co_name"));
    }
  });
  std::reverse(places.begin(), places.end());
  return places;
}

}  // namespace torchshare::bindings
