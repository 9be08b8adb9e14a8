#pragma once

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <string>
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

/// The text up to its first dot; empty if `name` is null or no text.
inline std::string_view top_of(PyObject* name) {
  Py_ssize_t size = 0;
  const char* text = name != nullptr && PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &size) : nullptr;
  if (text == nullptr) {
    PyErr_Clear();  // a name with surrogates
  }
  const std::string_view whole = text == nullptr ? std::string_view() : std::string_view(text, size);
  return whole.substr(0, whole.find('.'));
}

/// The same of `variables[name]`.
inline std::string top_of(PyObject* variables, PyObject* name) {
  const bool are_plain = variables != nullptr && PyDict_CheckExact(variables);
  return std::string(top_of(are_plain ? item_of(variables, name).ptr() : nullptr));
}

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
inline std::string assigning_package() {
  return top_of(PyEval_GetGlobals(), names().name);
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
