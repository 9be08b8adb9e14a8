#pragma once

#include <pybind11/pybind11.h>

namespace torchshare::bindings {

void bind_model(pybind11::module_& module);
void bind_sharing(pybind11::module_& module);
void bind_planner(pybind11::module_& module);
void bind_gate(pybind11::module_& module);
void bind_runtime(pybind11::module_& module);
void bind_compiled(pybind11::module_& module);
void bind_cluster(pybind11::module_& module);

}  // namespace torchshare::bindings
