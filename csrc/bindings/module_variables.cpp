#include "bindings/module_variables.h"

#include <unordered_set>

namespace torchshare::bindings {
namespace py = pybind11;

namespace {

/// While it exists, no other thread changes the object. Only the GIL-free build has such locks.
class [[nodiscard]] Locked {
 public:
#ifdef Py_GIL_DISABLED
  explicit Locked(py::handle object) { PyCriticalSection_Begin(&section_, object.ptr()); }
  ~Locked() { PyCriticalSection_End(&section_); }
  Locked(const Locked&) = delete;  // bound to the stack
  Locked& operator=(const Locked&) = delete;

 private:
  PyCriticalSection section_;
#else
  explicit Locked(py::handle /*object*/) {}
#endif
};

}  // namespace

std::vector<Variable> variables_with(const py::typing::Iterable<Variables>& namespaces,
                                     const std::vector<py::object>& objects) {
  std::unordered_set<const PyObject*> wanted;
  for (const py::object& object : objects) {
    wanted.insert(object.ptr());
  }
  std::vector<Variable> found;
  for (const py::handle each : namespaces) {
    const auto variables = py::reinterpret_borrow<Variables>(each);
    const Locked here(variables);
    PyObject* name = nullptr;
    PyObject* value = nullptr;
    for (Py_ssize_t next = 0; PyDict_Next(variables.ptr(), &next, &name, &value) != 0;) {  // nothing here runs Python
      if (wanted.contains(value)) {
        found.emplace_back(variables, py::reinterpret_borrow<py::object>(name),
                           py::reinterpret_borrow<py::object>(value));
      }
    }
  }
  return found;
}

}  // namespace torchshare::bindings
