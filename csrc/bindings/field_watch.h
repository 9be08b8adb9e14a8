#pragma once

#include <pybind11/pybind11.h>

namespace torchshare::bindings {

/// Calls `assigned(function, name, value)` before the code, the defaults or the keyword defaults of a function are
/// replaced; True from it means that nothing is left to do. A read of `module.__dict__` or `function.__globals__` gives
/// what `read(module or function, dictionary)` returns, once the module is imported, unless code of a package in
/// `untold` reads. What either raises, the assignment or read raises. With the GIL. See Note [Watching attributes].
void watch_fields(pybind11::object assigned, pybind11::object read, const pybind11::frozenset& untold);
void unwatch_fields();

}  // namespace torchshare::bindings
