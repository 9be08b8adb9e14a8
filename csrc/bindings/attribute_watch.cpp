#include "bindings/attribute_watch.h"

#include "bindings/watched.h"

namespace py = pybind11;

// Note [Watching attributes]
// Every assignment to an attribute of a class or a module goes through `tp_setattro` of its type: that of `type` or of
// `ModuleType`, which metaclasses and classes of modules inherit. The watch puts a function of ours into that slot, and
// into the wrappers `type.__setattr__` and `ModuleType.__setattr__`, because CPython refuses a call of a wrapper whose
// function is not the one in the slot. A metaclass with a `__setattr__` of its own arrives here through the wrapper.
//
// `object.__setattr__(module, ...)` is refused by CPython meanwhile. The dictionary of a module, which code may change
// without these, and the fields of functions are descriptors of the built-in types: see field_watch.h.
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
      wrapper(name)->d_wrapped = reinterpret_cast<void*>(to);
    }
  }

  /// The descriptor of the type itself: from Python 3.13 on, ModuleType inherits those of `object`.
  PyWrapperDescrObject* wrapper(const char* name) {
    PyObject* found = PyDict_GetItemString(dictionary_of(base_), name);
    if (found == nullptr) {
      PyObject* inherited = PyDict_GetItemString(dictionary_of(PyBaseObject_Type), name);
      const auto own = py::reinterpret_steal<py::object>(
          PyDescr_NewWrapper(&base_, reinterpret_cast<PyWrapperDescrObject*>(inherited)->d_base, nullptr));
      PyDict_SetItemString(dictionary_of(base_), name, own.ptr());
      found = own.ptr();
    }
    return reinterpret_cast<PyWrapperDescrObject*>(found);
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

Told callback;
PyObject* ignored = nullptr;              // a set of names
PyTypeObject* descriptor_type = nullptr;  // of attributes of classes that are routed already

/// What a class has under a name, itself or from its bases; null if nothing.
py::object attribute_of(PyTypeObject* type, PyObject* name) {
#if PY_VERSION_HEX >= 0x030d0000
  return py::reinterpret_steal<py::object>(_PyType_LookupRef(type, name));
#else
  return py::reinterpret_borrow<py::object>(_PyType_Lookup(type, name));
#endif
}

/// The value that the assignment replaces, or `value` if it stores no other: the type of `owner` handles it itself, or
/// CPython refuses it. Check PyErr_Occurred.
py::object replaced(PyObject* owner, PyObject* name, PyObject* value) {
  const py::object of_type = attribute_of(Py_TYPE(owner), name);
  if (of_type && Py_TYPE(of_type.ptr())->tp_descr_set != nullptr) {
    return py::reinterpret_borrow<py::object>(value);
  }
  if (!PyType_Check(owner)) {
    return item_of(PyModule_GetDict(owner), name);
  }
  auto* type = reinterpret_cast<PyTypeObject*>(owner);
  return PyType_HasFeature(type, Py_TPFLAGS_IMMUTABLETYPE) ? py::reinterpret_borrow<py::object>(value)
                                                           : attribute_of(type, name);
}

/// Whether the callback is skipped: the package of `owner` assigns, `owner` is still being imported, or importlib puts
/// a module into its package. These are most assignments of an import.
bool is_its_own(PyObject* owner, PyObject* value) {
  const bool is_class = PyType_Check(owner);
  PyObject* variables = is_class ? reinterpret_cast<PyTypeObject*>(owner)->tp_dict : PyModule_GetDict(owner);
  const py::object name = module_in(variables, is_class ? names().module : names().name);
  const PackageName assigning = assigning_package();
  if (PackageName(name).is(assigning)) {
    return true;
  }
  py::object of_class;
  if (is_class) {
    of_class = name && PyUnicode_CheckExact(name.ptr()) ? item_of(PyImport_GetModuleDict(), name.ptr()) : py::object();
    variables = of_class && PyModule_Check(of_class.ptr()) ? PyModule_GetDict(of_class.ptr()) : nullptr;
  }
  const std::string_view importer = assigning.text();
  const bool is_importlib = importer == "importlib" || importer.starts_with("_frozen_importlib");
  if (is_importlib &&  // C code of a new module, too
      ((value != nullptr && PyModule_Check(value)) || variables == nullptr || !spec_of(variables))) {
    return true;
  }
  return variables != nullptr && is_initializing(variables);
}

int set_attribute(PyObject* owner, PyObject* name, PyObject* value, setattrofunc original) {
  if (!callback || !PyUnicode_CheckExact(name)) {
    return original(owner, name, value);
  }
  // Kept: CPython releases it before it clears the class's attribute cache, where another thread could find it.
  const py::object former = replaced(owner, name, value);
  if (PyErr_Occurred() != nullptr) {
    return -1;
  }
  const bool is_routed = former && PyObject_TypeCheck(former.ptr(), descriptor_type);
  if (former.ptr() == value || PySet_Contains(ignored, name) == 1 || (!is_routed && is_its_own(owner, value))) {
    return PyErr_Occurred() != nullptr ? -1 : original(owner, name, value);
  }
  PyObject* answer = value == nullptr ? callback({owner, name}) : callback({owner, name, value});
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

void watch_attributes(py::typing::Callable<bool(py::ellipsis)> assigned, const FrozenSetOfStr& ignored_names,
                      const py::type& routed) {
  unwatch_attributes();
  names();
  ignored = py::object(ignored_names).release().ptr();
  descriptor_type = reinterpret_cast<PyTypeObject*>(py::object(routed).release().ptr());
  classes.install();
  modules.install();
  callback.set(std::move(assigned));
}

void unwatch_attributes() {
  callback.set(py::none());
  classes.remove();
  modules.remove();
}

}  // namespace torchshare::bindings
