#pragma once

#include <pybind11/typing.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

namespace torchshare::bindings {

/// From now on, the methods of the Python object `generator` are those of what `own()` returns in the calling thread,
/// unless that is None. The object and its class stay as they are. With the GIL.
void route_generator(const pybind11::object& generator, pybind11::typing::Callable<std::optional<at::Generator>()> own);
void unroute_generator();

}  // namespace torchshare::bindings
