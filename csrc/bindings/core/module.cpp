#include "bindings/bindings.h"

PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "The part of torchshare that works without torch; its stub is _core.pyi.";
  torchshare::bindings::bind_model(module);
  torchshare::bindings::bind_sharing(module);
  torchshare::bindings::bind_planner(module);
  torchshare::bindings::bind_cluster(module);
  module.def("torch_version", [] { return TORCHSHARE_TORCH_VERSION; });  // that `_C` was built with
}
