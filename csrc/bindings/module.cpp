#include <torch/csrc/Exceptions.h>

#include "bindings/attribute_watch.h"
#include "bindings/bindings.h"

PYBIND11_MODULE(_C, module) {
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
  module.def("watch_attributes", &torchshare::bindings::watch_attributes, pybind11::arg("callback"));
}
