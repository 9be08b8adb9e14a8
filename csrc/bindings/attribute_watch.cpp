#include "bindings/attribute_watch.h"

#include <utility>

namespace py = pybind11;

// Note [Watching attributes]
// Every assignment to an attribute of a class or a module goes through `tp_setattro` of its type: that of `type` or of
// `ModuleType`, which metaclasses and classes of modules inherit. The watch puts a function of ours into that slot, and
// into the wrappers `type.__setattr__` and `ModuleType.__setattr__`, because CPython refuses a call of a wrapper whose
// function is not the one in the slot. A metaclass with a `__setattr__` of its own arrives here through the wrapper.
//
// Not seen: writes to a module's `__dict__`, and `object.__setattr__(module, ...)`, which CPython refuses meanwhile.
namespace torchshare::bindings {
namespace {

class Watch {
 public:
  Watch(PyTypeObject& base, setattrofunc ours) : base_(base), ours_(ours), original_(base.tp_setattro) {}

  setattrofunc original() const { return original_; }

  void install() { exchange(original_, ours_); }
  void remove() { exchange(ours_, original_); }

 private:
  void exchange(setattrofunc from, setattrofunc to) {
    exchange_in(base_, from, to);
    for (const char* name : {"__setattr__", "__delattr__"}) {
      PyObject* wrapper = PyDict_GetItemString(base_.tp_dict, name);
      reinterpret_cast<PyWrapperDescrObject*>(wrapper)->d_wrapped = reinterpret_cast<void*>(to);
    }
  }

  static void exchange_in(PyTypeObject& type, setattrofunc from, setattrofunc to) {
    if (type.tp_setattro == from) {
      type.tp_setattro = to;
      PyType_Modified(&type);  // for code that the interpreter has specialized
    }
    const py::handle self(reinterpret_cast<PyObject*>(&type));
    for (const py::handle derived :
         py::handle(reinterpret_cast<PyObject*>(&PyType_Type)).attr("__subclasses__")(self)) {
      exchange_in(*reinterpret_cast<PyTypeObject*>(derived.ptr()), from, to);
    }
  }

  PyTypeObject& base_;
  const setattrofunc ours_;
  const setattrofunc original_;
};

PyObject* callback = nullptr;              // null: no watch. With the GIL
thread_local bool is_in_callback = false;  // whose own assignments are not watched

/// Whether the assignment stores another value in `owner`, or without `value` deletes one. False if the type of `owner`
/// handles it itself, and for what CPython refuses; check PyErr_Occurred.
bool stores(PyObject* owner, PyObject* name, PyObject* value) {
  PyObject* of_type = _PyType_Lookup(Py_TYPE(owner), name);
  if (of_type != nullptr && Py_TYPE(of_type)->tp_descr_set != nullptr) {
    return false;
  }
  PyObject* former = nullptr;
  if (!PyType_Check(owner)) {
    former = PyDict_GetItemWithError(PyModule_GetDict(owner), name);
  } else if (auto* type = reinterpret_cast<PyTypeObject*>(owner); PyType_HasFeature(type, Py_TPFLAGS_IMMUTABLETYPE)) {
    return false;
  } else {
    former = _PyType_Lookup(type, name);
  }
  return former != value && PyErr_Occurred() == nullptr;
}

int set_attribute(PyObject* owner, PyObject* name, PyObject* value, setattrofunc original) {
  if (callback == nullptr || is_in_callback || !PyUnicode_CheckExact(name)) {
    return original(owner, name, value);
  }
  if (!stores(owner, name, value)) {
    return PyErr_Occurred() != nullptr ? -1 : original(owner, name, value);
  }
  const py::object kept = py::reinterpret_borrow<py::object>(callback);
  is_in_callback = true;
  PyObject* answer = PyObject_CallFunctionObjArgs(callback, owner, name, value, nullptr);
  is_in_callback = false;
  if (answer == nullptr) {
    return -1;
  }
  const bool is_done = answer == Py_True;
  Py_DECREF(answer);
  return is_done ? 0 : original(owner, name, value);
}

int set_of_class(PyObject* owner, PyObject* name, PyObject* value);
int set_of_module(PyObject* owner, PyObject* name, PyObject* value);

Watch classes(PyType_Type, set_of_class);
Watch modules(PyModule_Type, set_of_module);

int set_of_class(PyObject* owner, PyObject* name, PyObject* value) {
  return set_attribute(owner, name, value, classes.original());
}

int set_of_module(PyObject* owner, PyObject* name, PyObject* value) {
  return set_attribute(owner, name, value, modules.original());
}

}  // namespace

void watch_attributes(py::object new_callback) {
  const py::object former = py::reinterpret_steal<py::object>(std::exchange(callback, nullptr));
  if (former) {
    classes.remove();
    modules.remove();
  }
  if (!new_callback.is_none()) {
    classes.install();
    modules.install();
    callback = new_callback.release().ptr();
  }
}

}  // namespace torchshare::bindings
