"""Attributes of `sys`, `warnings` and loggers that each script has of its own."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from torchshare.context import current
from torchshare.isolation.patches import Patches


class _OfScript:
    """An attribute of a module that is, in a script's threads, an attribute of its ScriptContext."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, module: ModuleType, _owner: type) -> Any:
        script = current.script()
        return self._outer(module) if script is None else getattr(script, self._name)

    def __set__(self, module: ModuleType, value: object) -> None:
        script = current.script()
        if script is None:
            self._set_outer(module, value)
        else:
            setattr(script, self._name, value)

    def _outer(self, module: ModuleType) -> Any:
        return module.__dict__[self._name]

    def _set_outer(self, module: ModuleType, value: object) -> None:
        module.__dict__[self._name] = value


class _OfScriptRouted(_OfScript):
    """For attributes that code looks up in the module's dictionary, such as `print` in C: there it finds an object that
    forwards to the script's, and keeps the process's own as `outer`."""

    def _outer(self, module: ModuleType) -> Any:
        return module.__dict__[self._name].outer

    def _set_outer(self, module: ModuleType, value: object) -> None:
        module.__dict__[self._name].outer = value


class _AnyModule(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, ModuleType)


class _Sys(ModuleType, metaclass=_AnyModule):
    """The class of `sys`. As `type(sys)` it is ModuleType: importlib makes modules with it."""

    def __new__(cls, name: str, doc: str | None = None) -> Any:
        return ModuleType(name, doc)

    argv = _OfScript("argv")
    path = _OfScript("path")
    modules = _OfScript("modules")
    stdin = _OfScriptRouted("stdin")
    stdout = _OfScriptRouted("stdout")
    stderr = _OfScriptRouted("stderr")


class RoutedStream:
    """Forwards to `sys.stdout`, or another stream of this name, of the calling thread."""

    def __init__(self, name: str, outer: Any) -> None:
        self._name = name
        self.outer = outer

    def __getattr__(self, attribute: str) -> Any:
        return getattr(getattr(sys, self._name), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(getattr(sys, self._name))


class _Warnings(ModuleType):
    filters = _OfScriptRouted("filters")


class _RoutedFilters(list[Any]):
    """Forwards to `warnings.filters` of the calling thread, for the functions of `warnings`."""

    def __init__(self, outer: list[Any]) -> None:
        super().__init__()
        self.outer = outer

    def insert(self, index: Any, item: Any) -> None:
        warnings.filters.insert(index, item)  # type: ignore[attr-defined]

    def append(self, item: Any) -> None:
        warnings.filters.append(item)  # type: ignore[attr-defined]

    def remove(self, item: Any) -> None:
        warnings.filters.remove(item)  # type: ignore[attr-defined]

    def __contains__(self, item: Any) -> bool:
        return item in warnings.filters

    def __iter__(self) -> Iterator[Any]:
        return iter(warnings.filters)

    def __setitem__(self, index: Any, value: Any) -> None:
        warnings.filters[index] = value  # type: ignore[index]


class _OfLogger:
    """An attribute of a logger. A script's starts as a copy of the process's; the root logger has no handlers."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, logger: logging.Logger, _owner: type) -> Any:
        return _attributes(logger)[self._name]

    def __set__(self, logger: logging.Logger, value: object) -> None:
        # A logger that a script makes is every job's.
        logger.__dict__.setdefault(self._name, value.copy() if isinstance(value, (dict, list)) else value)
        _attributes(logger)[self._name] = value


_OURS = logging.getLogger("torchshare")
_LOGGER_ATTRIBUTES = ("handlers", "filters", "level", "propagate", "disabled", "_cache")


def _attributes(logger: logging.Logger) -> dict[str, Any]:
    script = current.script()
    if script is None or logger is _OURS:
        return logger.__dict__
    if logger not in script.loggers:
        found = {name: logger.__dict__[name] for name in _LOGGER_ATTRIBUTES if name in logger.__dict__}
        copied = {name: value.copy() for name, value in found.items() if isinstance(value, list)}
        script.loggers[logger] = {**found, **copied, "_cache": {}}
        if logger is logging.root:
            script.loggers[logger] |= {"handlers": [], "level": logging.WARNING}
    return script.loggers[logger]


def process_stream(name: str) -> Any:
    """The process's own `sys.stdout` or other stream of this name, in a script's thread, too."""
    stream = sys.__dict__[name]
    return stream.outer if isinstance(stream, RoutedStream) else stream


def route(patches: Patches) -> None:
    for name in ("stdin", "stdout", "stderr"):
        _route_in_dictionary(patches, sys, name, RoutedStream(name, getattr(sys, name)))
    _route_in_dictionary(patches, warnings, "filters", _RoutedFilters(warnings.filters))  # type: ignore[arg-type]
    patches.replace(sys, "__class__", _Sys)
    patches.replace(warnings, "__class__", _Warnings)
    for name in _LOGGER_ATTRIBUTES:
        patches.replace(logging.Logger, name, _OfLogger(name))


def _route_in_dictionary(patches: Patches, module: ModuleType, name: str, routed: Any) -> None:
    module.__dict__[name] = routed
    patches.at_undo(lambda: module.__dict__.__setitem__(name, routed.outer))
