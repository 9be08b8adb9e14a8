#include "bindings/process_code.h"

#include <algorithm>

#include "bindings/python_threads.h"
#include "bindings/turns.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

/// No garbage collection, which would run Python, until the destructor. Same thread. From Python 3.12 on, allocations
/// do not collect.
class [[nodiscard]] NoCollection {
 public:
#if PY_VERSION_HEX >= 0x030c0000
  NoCollection() {}
#else
  NoCollection() : was_enabled_(PyGC_Disable() != 0) {}
  ~NoCollection() {
    if (was_enabled_) {
      PyGC_Enable();
    }
  }
  NoCollection(const NoCollection&) = delete;  // bound to a thread
  NoCollection& operator=(const NoCollection&) = delete;

 private:
  const bool was_enabled_;
#endif
};

/// "module.function" of a frame.
std::string name_of(const py::handle& frame) {
  const py::dict globals = frame.attr("f_globals");
  const py::object module = globals.contains("__name__") ? py::object(globals["__name__"]) : py::str();
  const py::object function = frame.attr("f_code").attr("co_name");
  return (py::isinstance<py::str>(module) ? module.cast<std::string>() : "") + "." + function.cast<std::string>();
}

bool begins_with_one(const std::string& name, const std::vector<std::string>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](const std::string& beginning) { return name.starts_with(beginning); });
}

}  // namespace

bool ProcessCode::is_run_here() const {
  return is_run_by(*PyThreadState_Get());
}

bool ProcessCode::is_run_by(PyThreadState& thread) const {
  const NoCollection here;
  const bool has_turn = Turns::is_had_by(thread.thread_id);
  for (py::object frame = innermost_frame(thread); !frame.is_none(); frame = frame.attr("f_back")) {
    const std::string code = name_of(frame);
    if (begins_with_one(code, always_) || (has_turn && begins_with_one(code, with_turn_))) {
      return true;
    }
  }
  return false;
}

bool ProcessCode::raise_in(unsigned long thread, const py::typing::Optional<ExceptionType>& type) const {
  PyThreadState* const state = thread_state(thread);
  if (state == nullptr) {
    return true;
  }
  if (!type.is_none() && is_run_by(*state)) {
    return false;
  }
  set_async_exception(*state, type.is_none() ? nullptr : type.ptr());
  return true;
}

}  // namespace torchshare::bindings
