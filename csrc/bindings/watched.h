#pragma once

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <string_view>
#include <utility>

#include "bindings/python_threads.h"

namespace torchshare::bindings {

/// A Python callback that is called before the interpreter changes something, except for what the callback itself
/// changes. With the GIL. See Note [Watching attributes].
class Told {
 public:
  /// Whether this thread is to call it now.
  explicit operator bool() const { return callback_ != nullptr && !is_telling_; }

  /// None removes the callback.
  void set(pybind11::object callback) {
    PyObject* const next = callback.is_none() ? nullptr : callback.release().ptr();
    PyObject* former = nullptr;
    with_world_stopped([&] { former = std::exchange(callback_, next); });  // no thread is about to take a reference
    Py_XDECREF(former);
  }

  /// A new reference to the answer; null with an error set if the code raised.
  PyObject* operator()(std::initializer_list<PyObject*> arguments) const {
    const auto kept = pybind11::reinterpret_borrow<pybind11::object>(callback_);
    if (!kept) {
      return Py_NewRef(Py_False);  // removed since the caller asked, by another thread
    }
    is_telling_ = true;
    PyObject* answer = PyObject_Vectorcall(kept.ptr(), arguments.begin(), arguments.size(), nullptr);
    is_telling_ = false;
    return answer;
  }

 private:
  inline static thread_local bool is_telling_ = false;
  PyObject* callback_ = nullptr;  // not released at exit, when the interpreter has ended
};

/// The dictionary of a built-in type. Borrowed.
inline PyObject* dictionary_of(PyTypeObject& type) {
#if PY_VERSION_HEX >= 0x030c0000  // a static type has one per interpreter
  PyObject* found = PyType_GetDict(&type);
  Py_DECREF(found);
  return found;
#else
  return type.tp_dict;
#endif
}

/// The value of a key; null if there is none, or with an error set.
inline pybind11::object item_of(PyObject* dictionary, PyObject* key) {
#if PY_VERSION_HEX >= 0x030d0000
  PyObject* found = nullptr;
  PyDict_GetItemRef(dictionary, key, &found);
  return pybind11::reinterpret_steal<pybind11::object>(found);
#else
  return pybind11::reinterpret_borrow<pybind11::object>(PyDict_GetItemWithError(dictionary, key));
#endif
}

/// `variables[key]`, the name of a module; null if there is none.
inline pybind11::object module_in(PyObject* variables, PyObject* key) {
  return variables != nullptr && PyDict_CheckExact(variables) ? item_of(variables, key) : pybind11::object();
}

/// The name of a top-level package. Refers to the text of a Python string, which it keeps: a copy would need memory,
/// and the interpreter's slots, where these names are compared, must not throw.
class PackageName {
 public:
  /// From the name of a module; empty if that is null or no text.
  explicit PackageName(pybind11::object module) : module_(std::move(module)) {
    Py_ssize_t size = 0;
    const char* text =
        module_ && PyUnicode_Check(module_.ptr()) ? PyUnicode_AsUTF8AndSize(module_.ptr(), &size) : nullptr;
    if (text == nullptr) {
      PyErr_Clear();  // a name with surrogates
    } else {
      name_ = std::string_view(text, size);
      name_ = name_.substr(0, name_.find('.'));
    }
  }
  PackageName(const PackageName&) = delete;  // name_ refers to the text of module_
  PackageName& operator=(const PackageName&) = delete;

  std::string_view text() const { return name_; }
  /// Whether both are known and the same.
  bool is(const PackageName& other) const { return !name_.empty() && name_ == other.name_; }

 private:
  pybind11::object module_;
  std::string_view name_;
};

/// Names of attributes, interned.
struct Names {
  PyObject* name = PyUnicode_InternFromString("__name__");
  PyObject* module = PyUnicode_InternFromString("__module__");
  PyObject* spec = PyUnicode_InternFromString("__spec__");
  PyObject* initializing = PyUnicode_InternFromString("_initializing");
};

/// Made before the first watch: a thread that waits for another one to make them could not be stopped.
inline const Names& names() {
  static const Names all;
  return all;
}

/// The top-level name of the package whose code assigns.
inline PackageName assigning_package() {
  return PackageName(module_in(PyEval_GetGlobals(), names().name));
}

/// The `__spec__` of a module with these variables; null if it has none.
inline pybind11::object spec_of(PyObject* variables) {
  pybind11::object spec = item_of(variables, names().spec);
  return spec.is_none() ? pybind11::object() : spec;
}

/// Whether the module that has these variables is being imported.
inline bool is_initializing(PyObject* variables) {
  const pybind11::object spec = spec_of(variables);
  PyObject* flag = spec ? PyObject_GetAttr(spec.ptr(), names().initializing) : nullptr;
  if (flag == nullptr) {
    PyErr_Clear();
    return false;
  }
  Py_DECREF(flag);
  return flag == Py_True;
}

}  // namespace torchshare::bindings
