#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <tuple>
#include <vector>

namespace torchshare::bindings {

// Note [Without the GIL]
// A thread that holds the GIL excludes all others from Python: it may read their frames, and decide by them. A
// free-threaded interpreter has no GIL, and "with the GIL" means there that the thread is attached to the interpreter,
// as others are at the same time. Code that needs to exclude them stops the world, as the garbage collector does:
// every other thread is then detached, or halts before a bytecode. Frames of running threads must not be read
// (python/cpython#152355).

/// Calls `function` while no other thread runs Python. It must not block, run Python, make or end a thread's state,
/// or stop the world. With the GIL.
void with_world_stopped(const std::function<void()>& function);

/// The state of the thread with that Python id; null if it has none. Only while the world is stopped.
PyThreadState* thread_state(unsigned long thread);

/// The frame that the thread runs; None if it runs no Python. In the thread itself, or while the world is stopped.
pybind11::object innermost_frame(PyThreadState& thread);

/// As PyThreadState_SetAsyncExc, which cannot be called while the world is stopped: `type` is raised before the next
/// bytecode of the thread; null takes back what has not been raised.
void set_async_exception(PyThreadState& thread, PyObject* type);

/// File, line and function.
using Place = std::tuple<pybind11::str, int, pybind11::str>;

/// Where the thread with that Python id is, the innermost frame last; empty if it runs no Python. With the GIL.
std::vector<Place> stack_of(unsigned long thread);

}  // namespace torchshare::bindings
