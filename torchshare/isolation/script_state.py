"""Attributes of `sys`, `warnings` and loggers that each script has of its own."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from torchshare.context import current
from torchshare.isolation.attributes import missing
from torchshare.isolation.patches import Patches
from torchshare.isolation.table import Table


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
        module.__dict__[self._name].outer = _unrouted(value)


class _AnyModule(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, ModuleType)


class _Sys(ModuleType, metaclass=_AnyModule):
    """The class of `sys`. As `type(sys)` it is ModuleType: importlib makes modules with it."""

    def __new__(cls, name: str, doc: str | None = None) -> Any:
        return ModuleType(name, doc)

    __getattr__ = missing
    argv = _OfScript("argv")
    path = _OfScript("path")
    path_importer_cache = _OfScript("path_importer_cache")  # relative entries are those of its working folder
    modules = _OfScript("modules")
    stdin = _OfScriptRouted("stdin")
    stdout = _OfScriptRouted("stdout")
    stderr = _OfScriptRouted("stderr")


class _Routed:
    """What stands for an attribute in the dictionary of its module: forwards to the script's, or to the process's own,
    `outer`. Code that has read this object itself, while the module was being patched, may assign it later: it is never
    its own `outer`."""

    def __init__(self, name: str, outer: Any) -> None:
        self._name = name
        self.outer = _unrouted(outer)

    def _of_thread(self) -> Any:
        script = current.script()
        return self.outer if script is None else getattr(script, self._name)


def _unrouted(value: Any) -> Any:
    return value.outer if isinstance(value, _Routed) else value


class RoutedStream(_Routed):
    """`sys.stdout`, or another stream."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._of_thread(), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_thread())


class _Warnings(ModuleType):
    __getattr__ = missing
    filters = _OfScriptRouted("filters")


class _RoutedFilters(_Routed, list[Any]):
    """`warnings.filters`, for the functions of `warnings`."""

    def insert(self, index: Any, item: Any) -> None:
        self._of_thread().insert(index, item)

    def append(self, item: Any) -> None:
        self._of_thread().append(item)

    def remove(self, item: Any) -> None:
        self._of_thread().remove(item)

    def __contains__(self, item: Any) -> bool:
        return item in self._of_thread()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._of_thread())

    def __getitem__(self, index: Any) -> Any:
        return self._of_thread()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._of_thread()[index] = value


class _OfLogger:
    """An attribute of a logger. A script's starts as a copy of the process's; the root logger has no handlers."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, logger: logging.Logger, _owner: type) -> Any:
        return _attributes(logger)[self._name]

    def __set__(self, logger: logging.Logger, value: object) -> None:
        if logger is _OURS and self._name == "disabled" and current.script() is not None:
            return  # by dictConfig, which disables all loggers that it does not configure: jobs' errors would be lost
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


TABLE = Table()


@TABLE.at_start
def _route_in_dictionaries(patches: Patches) -> None:
    for name in ("stdin", "stdout", "stderr"):
        route_in_dictionary(patches, sys, name, RoutedStream(name, getattr(sys, name)))
    route_in_dictionary(patches, warnings, "filters", _RoutedFilters("filters", warnings.filters))
    for name in _LOGGER_ATTRIBUTES:
        patches.replace(logging.Logger, name, _OfLogger(name))


_WHY_SYS = "argv, path, path_importer_cache, modules, stdin, stdout and stderr are each script's own."
TABLE.value("sys", "__class__", why=_WHY_SYS)(lambda _: _Sys)
TABLE.value("warnings", "__class__", why="Filters are each script's own.")(lambda _: _Warnings)


def route_in_dictionary(patches: Patches, module: ModuleType, name: str, routed: Any) -> None:
    module.__dict__[name] = routed
    patches.at_undo(lambda: module.__dict__.__setitem__(name, routed.outer))
