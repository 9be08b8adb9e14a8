"""What `logging` has one of per process, and each script has of its own: the level that it disables, its class of
loggers and its factory of records, its names of levels, its handlers to close, and whether warnings are logged. The
attributes of loggers are in `script_state`."""

from __future__ import annotations

import logging
import sys
import warnings
from collections import UserDict, UserList
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any
from weakref import WeakValueDictionary

from torchshare.context import current
from torchshare.isolation import packages, replacements
from torchshare.isolation.patches import Patches
from torchshare.isolation.script_state import route_in_dictionary
from torchshare.isolation.table import Table

TABLE = Table()
_WHY = "Each script has its own."
_MANAGER = logging.Logger.manager
"""It has all loggers. A program may make another manager."""


def _own() -> dict[str, Any] | None:
    """The script's values; None outside of scripts."""
    script = current.script()
    return None if script is None else script.logging


def _to_set() -> dict[str, Any] | None:
    """As `_own`, but None for a package that scripts share and that is being imported: what it sets is for all."""
    return None if packages.being_imported(sys._getframe(1)) else _own()


class _OfManager:
    """An attribute of the manager of all loggers. A script's starts as the process's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, manager: logging.Manager, _owner: type) -> Any:
        common, own = manager.__dict__[self._name], _own()
        return common if own is None or manager is not _MANAGER else own.get(self._name, common)

    def __set__(self, manager: logging.Manager, value: object) -> None:
        own = _to_set()
        (manager.__dict__ if own is None or manager is not _MANAGER else own)[self._name] = value


class _ManagerOfProcess:
    """The manager for torchshare's own logger, whose messages no script disables."""

    disable = property(lambda self: _MANAGER.__dict__["_disable"])

    def __getattr__(self, name: str) -> Any:
        return getattr(_MANAGER, name)


class _Variable:
    """Stands for a variable of `logging`: the script's, or the process's own, `outer`."""

    def __init__(self, name: str, outer: Any) -> None:
        self._name = name
        self.outer = outer

    def _in(self, own: dict[str, Any] | None, make: Callable[[], Any]) -> Any:
        """The value among the script's, which begins as what `make` makes, or the process's if there are none."""
        return self.outer if own is None else own.setdefault(self._name, make())


class _Routed(_Variable):
    """A function or class."""

    @property
    def value(self) -> Any:
        own = _own()
        return self.outer if own is None else own.get(self._name, self.outer)

    @value.setter
    def value(self, new: Any) -> None:
        own = _to_set()
        if own is None:
            self.outer = new
        else:
            own[self._name] = new

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)


class _Levels(_Variable, MutableMapping[Any, Any]):
    """A script's own levels come before the process's."""

    def copy(self) -> dict[Any, Any]:
        return self.outer | self._in(_own(), dict)  # type: ignore[no-any-return]

    __copy__ = copy

    def __getitem__(self, key: Any) -> Any:
        data = self._in(_own(), dict)
        return data[key] if key in data else self.outer[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._in(_to_set(), dict)[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._in(_to_set(), dict)[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.copy())

    def __len__(self) -> int:
        return len(self.copy())


class _Names(_Variable, UserDict[str, Any]):
    """Handlers by name. A script has those that it has named."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return self._in(_own(), WeakValueDictionary)


class _Handlers(_Variable, UserList[Any]):
    """Weak references. A script has those of the handlers that its own code makes."""

    @property
    def data(self) -> list[Any]:  # type: ignore[override]
        return self._in(_own(), list)  # type: ignore[no-any-return]

    def append(self, item: Any) -> None:
        script = current.script()
        is_own = script is None or not packages.is_shared(script, packages.author(sys._getframe(1)))
        (self.data if is_own else self.outer).append(item)

    def __getitem__(self, index: Any) -> Any:
        return self.data[index]


_VARIABLES: dict[str, Callable[[str, Any], Any]] = {
    **{"_logRecordFactory": _Routed, "_loggerClass": _Routed},
    **{"_levelToName": _Levels, "_nameToLevel": _Levels, "_handlerList": _Handlers, "_handlers": _Names},
}


@TABLE.at_start
def _route(patches: Patches) -> None:
    patches.replace(logging.getLogger("torchshare"), "manager", _ManagerOfProcess())
    for name in ("_disable", "loggerClass"):
        patches.replace(logging.Manager, name, _OfManager(name))
    for name, kind in _VARIABLES.items():
        route_in_dictionary(patches, logging, name, kind(name, logging.__dict__[name]))


@TABLE.call("logging", "setLogRecordFactory", why=_WHY, everywhere=True)
def _set_record_factory(_original: Callable[..., None], factory: Any) -> None:
    logging._logRecordFactory.value = factory  # type: ignore[attr-defined]


@TABLE.call("logging", "getLogRecordFactory", why=_WHY, everywhere=True)
def _get_record_factory(_original: Callable[[], Any]) -> Any:
    return logging._logRecordFactory.value  # type: ignore[attr-defined]


@TABLE.call("logging", "setLoggerClass", why=_WHY, everywhere=True)
def _set_logger_class(_original: Callable[..., None], klass: type[logging.Logger]) -> None:
    if not issubclass(klass, logging.Logger):
        raise TypeError("logger not derived from logging.Logger: " + klass.__name__)
    logging._loggerClass.value = klass  # type: ignore[attr-defined]


@TABLE.call("logging", "getLoggerClass", why=_WHY, everywhere=True)
def _get_logger_class(_original: Callable[[], Any]) -> Any:
    return logging._loggerClass.value  # type: ignore[attr-defined]


@TABLE.call("logging", "shutdown")
def _shutdown(original: Callable[..., None], *handlers: list[Any]) -> None:
    """A script closes its own handlers."""
    if not handlers and current.script() is not None:
        handlers = (logging._handlerList[:],)  # type: ignore[attr-defined]
    original(*handlers)


@TABLE.call("logging", "captureWarnings", everywhere=True)
def _capture_warnings(original: Callable[[bool], None], capture: bool) -> None:
    """A script's warnings are logged if the script has said so."""
    script = current.script()
    if script is None:
        original(capture)
        return
    former = script.logging.get("showwarning")
    if capture and former is None:
        script.logging["showwarning"] = warnings.showwarning
        replacements.set_own(script, warnings, "showwarning", _showing(warnings.showwarning))
    elif not capture and former is not None:
        replacements.set_own(script, warnings, "showwarning", script.logging.pop("showwarning"))


def _showing(former: Callable[..., None]) -> Callable[..., None]:
    def showwarning(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: str | None = None
    ) -> None:
        if file is None:
            logging._showwarning(message, category, filename, lineno, None, line)  # type: ignore[attr-defined]
        else:
            former(message, category, filename, lineno, file, line)

    return showwarning
