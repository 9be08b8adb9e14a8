#pragma once

#include <pybind11/typing.h>

namespace torchshare::bindings {

/// Calls `assigned(function, name, value)` before the code, the defaults or the keyword defaults of a function are
/// replaced, without `value` before they are deleted; True from it means that nothing is left to do. What it raises,
/// the assignment raises. With the GIL. See Note [Watching attributes].
void watch_fields(pybind11::typing::Callable<bool(pybind11::ellipsis)> assigned);
void unwatch_fields();

}  // namespace torchshare::bindings
