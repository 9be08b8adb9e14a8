#pragma once

#include <pybind11/typing.h>

#include "bindings/typed.h"

namespace torchshare::bindings {

/// Calls `assigned(owner, name[, value])` before an attribute of a module or class that exists is assigned another
/// value or, without `value`, deleted. True from it means that it has done the assignment; what it raises, the
/// assignment raises. Not called for the names in `ignored`, nor for what a package does to itself or while it is
/// imported, unless the class holds a descriptor of type `routed`. With the GIL. See Note [Watching attributes].
void watch_attributes(pybind11::typing::Callable<bool(pybind11::ellipsis)> assigned, const FrozenSetOfStr& ignored,
                      const pybind11::type& routed);
void unwatch_attributes();

}  // namespace torchshare::bindings
