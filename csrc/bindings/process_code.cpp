#include "bindings/process_code.h"

#include <algorithm>

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

/// No garbage collection, which would run Python, until the destructor. Same thread.
class NoCollection {
 public:
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
};

}  // namespace

bool ProcessCode::is_run_by(unsigned long thread) const {
  const NoCollection here;
  const py::dict frames = py::reinterpret_borrow<py::object>(PySys_GetObject("_current_frames"))();
  const py::int_ name(thread);
  if (!frames.contains(name)) {
    return false;
  }
  for (py::object frame = frames[name]; !frame.is_none(); frame = frame.attr("f_back")) {
    if (has(frame)) {
      return true;
    }
  }
  return false;
}

bool ProcessCode::has(const py::handle& frame) const {
  const py::dict globals = frame.attr("f_globals");
  const py::object module = globals.contains("__name__") ? py::object(globals["__name__"]) : py::str();
  const py::object function = frame.attr("f_code").attr("co_name");
  const std::string full =
      (py::isinstance<py::str>(module) ? module.cast<std::string>() : "") + "." + function.cast<std::string>();
  return std::any_of(beginnings_.begin(), beginnings_.end(),
                     [&](const std::string& beginning) { return full.starts_with(beginning); });
}

}  // namespace torchshare::bindings
