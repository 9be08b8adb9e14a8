#pragma once

#include <pybind11/numpy.h>
#include <pybind11/typing.h>

/// Types whose names pybind11 shows in signatures, and so in the stubs. It checks only the type they derive from.
namespace torchshare::bindings {

class BaseException : public pybind11::object {};
using ExceptionType = pybind11::typing::Type<BaseException>;

class FrozenSetOfStr : public pybind11::frozenset {
 public:
  using frozenset::frozenset;
};

/// An array of any type of items.
class AnyArray : public pybind11::array {
 public:
  using array::array;
};

/// The arguments of `__exit__`.
using ExitArgs = pybind11::Args<pybind11::object>;

}  // namespace torchshare::bindings

namespace pybind11::detail {

template <>
struct handle_type_name<torchshare::bindings::BaseException> {
  static constexpr auto name = const_name("BaseException");
};

template <>
struct handle_type_name<torchshare::bindings::FrozenSetOfStr> {
  static constexpr auto name = const_name("frozenset[str]");
};

template <>
struct handle_type_name<torchshare::bindings::AnyArray> {
  static constexpr auto name = const_name("numpy.typing.NDArray[typing.Any]");
};

}  // namespace pybind11::detail
