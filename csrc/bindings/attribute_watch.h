#pragma once

#include <pybind11/pybind11.h>

namespace torchshare::bindings {

/// Calls `callback(owner, name[, value])` before an attribute of a module or class that exists is assigned another
/// value or, without `value`, deleted. True from it means that it has done the assignment; what it raises, the
/// assignment raises. None ends the watch. With the GIL. See Note [Watching attributes].
void watch_attributes(pybind11::object callback);

}  // namespace torchshare::bindings
