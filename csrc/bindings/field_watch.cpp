#include "bindings/field_watch.h"

#include <array>
#include <utility>

#include "bindings/watched.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

Told of_assignments;

/// A field of a built-in type. While it is watched, a descriptor of ours is in the dictionary of the type.
class Field {
 public:
  Field(PyTypeObject& type, const char* name, getter get, setter set)
      : type_(type), name_(name), ours_{name, get, set, nullptr, this} {}

  void install() {
    if (!original_) {
      PyObject* const present = PyDict_GetItemString(dictionary_of(type_), ours_.name);
      original_ = py::reinterpret_borrow<py::object>(present);
    }
    put(py::reinterpret_steal<py::object>(PyDescr_NewGetSet(&type_, &ours_)));
  }

  void remove() {
    if (original_) {
      put(original_);
    }
  }

  PyObject* name() const { return name_.ptr(); }

  PyObject* read(PyObject* owner) const {
    return Py_TYPE(original_.ptr())->tp_descr_get(original_.ptr(), owner, reinterpret_cast<PyObject*>(Py_TYPE(owner)));
  }

  int write(PyObject* owner, PyObject* value) const {
    return Py_TYPE(original_.ptr())->tp_descr_set(original_.ptr(), owner, value);
  }

 private:
  void put(const py::object& descriptor) {
    if (PyDict_SetItemString(dictionary_of(type_), ours_.name, descriptor.ptr()) != 0) {
      throw py::error_already_set();
    }
    PyType_Modified(&type_);
  }

  PyTypeObject& type_;
  const py::str name_;
  PyGetSetDef ours_;
  py::object original_;  // kept: code may have read our descriptor, and use it after the watch
};

PyObject* read(PyObject* owner, void* field) {
  return static_cast<Field*>(field)->read(owner);
}

/// Whether the function's own package assigns, as decorators do.
bool is_its_own(PyObject* function) {
  return PackageName(py::reinterpret_steal<py::object>(PyObject_GetAttr(function, names().module)))
      .is(assigning_package());
}

int assign(PyObject* owner, PyObject* value, void* closure) {
  const auto& field = *static_cast<Field*>(closure);
  if (of_assignments && !is_its_own(owner)) {
    PyObject* answer =
        value == nullptr ? of_assignments({owner, field.name()}) : of_assignments({owner, field.name(), value});
    if (answer == nullptr) {
      return -1;
    }
    const bool is_done = answer == Py_True;
    Py_DECREF(answer);
    if (is_done) {
      return 0;
    }
  }
  return field.write(owner, value);
}

/// Never destroyed: code may keep a descriptor of ours.
const std::array<Field*, 3>& fields() {
  static const auto& all = *new std::array<Field*, 3>{
      new Field(PyFunction_Type, "__code__", read, assign),
      new Field(PyFunction_Type, "__defaults__", read, assign),
      new Field(PyFunction_Type, "__kwdefaults__", read, assign),
  };
  return all;
}

}  // namespace

void watch_fields(py::typing::Callable<bool(py::ellipsis)> assigned) {
  unwatch_fields();
  names();
  for (Field* field : fields()) {
    field->install();
  }
  of_assignments.set(std::move(assigned));
}

void unwatch_fields() {
  of_assignments.set(py::none());
  for (Field* field : fields()) {
    field->remove();
  }
}

}  // namespace torchshare::bindings
