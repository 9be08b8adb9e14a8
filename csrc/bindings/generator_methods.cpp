#include "bindings/generator_methods.h"

#include <array>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings/python_threads.h"
#include "bindings/watched.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

// Note [Methods of the default generator]
// Code has bound torch's default generator by many names, as defaults of arguments, too, and dynamo wants its class to
// be torch.Generator itself. So neither is replaced, but what the methods of that class call. A bound method that was
// read before is not routed.

constexpr std::size_t kMost = 32;

struct Method {
  PyMethodDescrObject* descriptor = nullptr;  ///< null behind the last method
  PyMethodDef* original = nullptr;
  PyMethodDef ours{};
};

/// Never destroyed: code may keep a bound method of ours.
std::array<Method, kMost>& methods() {
  static auto& all = *new std::array<Method, kMost>;
  return all;
}

PyObject* routed = nullptr;         // torch has it for ever
PyObject* own_generator = nullptr;  // a callable; owned

PyObject* call_routed(PyCFunction original, PyObject* self, PyObject* argument) {
  if (self != routed) {
    return original(self, argument);
  }
  const auto ask = py::reinterpret_borrow<py::object>(own_generator);
  if (!ask) {
    return original(self, argument);  // another thread has ended the routing
  }
  const auto own = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(ask.ptr()));
  if (!own) {
    return nullptr;
  }
  if (own.is_none()) {
    return original(self, argument);
  }
  PyObject* const result = original(own.ptr(), argument);
  if (result == own.ptr()) {  // `manual_seed` and others return the generator itself
    Py_DECREF(result);
    Py_INCREF(self);
    return self;
  }
  return result;
}

template <std::size_t I>
PyObject* call(PyObject* self, PyObject* argument) {
  return call_routed(methods()[I].original->ml_meth, self, argument);
}

template <std::size_t... I>
constexpr std::array<PyCFunction, kMost> calls(std::index_sequence<I...>) {
  return {&call<I>...};
}

/// Finds the methods of the class once. Throws std::runtime_error for one that cannot be routed.
void find_methods(PyTypeObject& type) {
  static constexpr auto kCalls = calls(std::make_index_sequence<kMost>());
  std::array<Method, kMost> found;
  std::size_t count = 0;
  for (PyMethodDef* method = type.tp_methods; method != nullptr && method->ml_name != nullptr; ++method) {
    PyObject* const descriptor = PyDict_GetItemString(dictionary_of(type), method->ml_name);
    const bool takes_one_at_most = method->ml_flags == METH_NOARGS || method->ml_flags == METH_O;
    if (descriptor == nullptr || Py_TYPE(descriptor) != &PyMethodDescr_Type || !takes_one_at_most || count == kMost) {
      throw std::runtime_error(std::string("torch.Generator.") + method->ml_name + " cannot be routed");
    }
    found[count] = {reinterpret_cast<PyMethodDescrObject*>(descriptor), method, *method};
    found[count].ours.ml_meth = kCalls[count];
    ++count;
  }
  methods() = found;
}

void set_methods(bool ours) {
  for (Method& method : methods()) {
    if (method.descriptor != nullptr) {
      method.descriptor->d_method = ours ? &method.ours : method.original;
    }
  }
}

}  // namespace

void route_generator(const py::object& generator, py::typing::Callable<std::optional<at::Generator>()> own) {
  unroute_generator();
  if (methods()[0].descriptor == nullptr) {
    find_methods(*Py_TYPE(generator.ptr()));
  }
  with_world_stopped([&] {
    routed = generator.ptr();
    own_generator = own.release().ptr();
    set_methods(true);
  });
}

void unroute_generator() {
  PyObject* former = nullptr;
  with_world_stopped([&] {  // no thread is about to take a reference
    set_methods(false);
    routed = nullptr;
    former = std::exchange(own_generator, nullptr);
  });
  Py_XDECREF(former);
}

}  // namespace torchshare::bindings
