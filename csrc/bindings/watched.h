#pragma once

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <string_view>
#include <utility>

namespace torchshare::bindings {

/// A Python callback that is called before the interpreter changes something, except for what the callback itself
/// changes. With the GIL. See Note [Watching attributes].
class Told {
 public:
  /// Whether this thread is to call it now.
  explicit operator bool() const { return callback_ != nullptr && !is_telling_; }

  /// None removes the callback.
  void set(pybind11::object callback) {
    PyObject* former = std::exchange(callback_, callback.is_none() ? nullptr : callback.release().ptr());
    Py_XDECREF(former);
  }

  /// A new reference to the answer; null with an error set if the code raised.
  PyObject* operator()(std::initializer_list<PyObject*> arguments) const {
    const auto kept = pybind11::reinterpret_borrow<pybind11::object>(callback_);
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
inline std::string_view top_of(PyObject* variables, PyObject* name) {
  const bool are_plain = variables != nullptr && PyDict_CheckExact(variables);
  return top_of(are_plain ? PyDict_GetItemWithError(variables, name) : nullptr);
}

/// The top-level name of the package whose code assigns.
inline std::string_view assigning_package() {
  static PyObject* const name = PyUnicode_InternFromString("__name__");
  return top_of(PyEval_GetGlobals(), name);
}

/// The `__spec__` of a module with these variables, borrowed; null if it has none.
inline PyObject* spec_of(PyObject* variables) {
  static PyObject* const name = PyUnicode_InternFromString("__spec__");
  PyObject* spec = PyDict_GetItemWithError(variables, name);
  return spec == Py_None ? nullptr : spec;
}

inline bool has_spec(PyObject* variables) {
  return spec_of(variables) != nullptr;
}

/// Whether the module that has these variables is being imported.
inline bool is_initializing(PyObject* variables) {
  static PyObject* const name = PyUnicode_InternFromString("_initializing");
  PyObject* spec = spec_of(variables);
  PyObject* flag = spec == nullptr ? nullptr : PyObject_GetAttr(spec, name);
  if (flag == nullptr) {
    PyErr_Clear();
    return false;
  }
  Py_DECREF(flag);
  return flag == Py_True;
}

}  // namespace torchshare::bindings
