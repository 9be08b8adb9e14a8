#pragma once

#include <pybind11/typing.h>
#include <torch/csrc/utils/pybind.h>

#include <tuple>
#include <vector>

namespace torchshare::bindings {

using Variables = pybind11::typing::Dict<pybind11::str, pybind11::object>;
using Variable = std::tuple<Variables, pybind11::object, pybind11::object>;  // where it is, its name and its value

/// The variables whose value is one of `objects`. Compares identities and calls no method of a value. With the GIL.
std::vector<Variable> variables_with(const pybind11::typing::Iterable<Variables>& namespaces,
                                     const std::vector<pybind11::object>& objects);

}  // namespace torchshare::bindings
