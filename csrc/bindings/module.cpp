#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/attribute_watch.h"
#include "bindings/bindings.h"
#include "bindings/buffer_copies.h"
#include "bindings/field_watch.h"
#include "bindings/generator_methods.h"
#include "bindings/module_variables.h"

PYBIND11_MODULE(_C, module, pybind11::mod_gil_not_used()) {
  module.doc() = "Devices, the gate and jobs of torchshare; its stub is _C.pyi.";
  pybind11::register_exception_translator([](std::exception_ptr pointer) {
    try {
      std::rethrow_exception(pointer);
    } catch (torch::PyTorchError& error) {
      PyErr_SetString(error.python_type(), error.what());
    }
  });
  pybind11::module_::import("torchshare._core");  // defines types used here
  torchshare::bindings::bind_gate(module);
  torchshare::bindings::bind_runtime(module);
  torchshare::bindings::bind_compiled(module);
  using torchshare::bindings::BufferCopies;
  pybind11::class_<BufferCopies>(module, "BufferCopies")
      .def(pybind11::init<>())
      .def("keep", &BufferCopies::keep, pybind11::arg("modules"), pybind11::arg("groups"))
      .def("forget", &BufferCopies::forget)
      .def("refresh", &BufferCopies::refresh, pybind11::arg("modules"));
  module.def("watch_attributes", &torchshare::bindings::watch_attributes, pybind11::arg("assigned"),
             pybind11::arg("ignored"), pybind11::arg("routed"));
  module.def("unwatch_attributes", &torchshare::bindings::unwatch_attributes);
  module.def("route_generator", &torchshare::bindings::route_generator, pybind11::arg("generator"),
             pybind11::arg("own"));
  module.def("unroute_generator", &torchshare::bindings::unroute_generator);
  module.def("variables_with", &torchshare::bindings::variables_with, pybind11::arg("namespaces"),
             pybind11::arg("objects"));
  module.def("watch_fields", &torchshare::bindings::watch_fields, pybind11::arg("assigned"));
  module.def("unwatch_fields", &torchshare::bindings::unwatch_fields);
}
