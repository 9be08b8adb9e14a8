from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from torchshare import _C
from torchshare.isolation.imports import Imports, is_partial
from torchshare.isolation.table import Row, Table

_MISSING = object()
# From Python 3.14 on, annotations are evaluated when they are read, and may name what only type checkers import.
_ANNOTATIONS = "__annotate__" if sys.version_info >= (3, 14) else "__annotations__"
_numbers = itertools.count()


class Patches:
    """Attributes and functions replaced by others until `undo`. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards what follows: an import in any thread may apply rows
        os.register_at_fork(after_in_child=self._lock._at_fork_reinit)  # type: ignore[attr-defined]
        self._undo: list[Callable[[], None]] = []
        self._rebound: dict[int, tuple[object, object]] = {}  # by id: former and new value of variables of modules
        self._waiting: list[Row] = []  # for the import of their module
        self._executed: set[str] = set()  # modules that have been imported, even if the import has yet to return
        self._imports = Imports(self._imported)

    def apply(self, tables: Sequence[Table]) -> None:
        """Applies all rows or, if one fails, none; those of modules that are not loaded as soon as they are. Raises
        RuntimeError with the names of rows that the installed packages lack."""
        rows = [row for table in tables for row in table.rows if row.is_for()]
        modules = {row.module for row in rows}
        self._imports.watch(modules)
        with self._lock, self.all_or_none():
            loaded = {module for module in modules if self._is_loaded(module)}
            _check(row for row in rows if row.module in loaded)
            self._waiting += [row for row in rows if row.module not in loaded]
            for table in tables:
                for start in table.starts:
                    start(self)
                self._apply(row for row in table.rows if row.is_for() and row.module in loaded)

    def _is_loaded(self, module: str) -> bool:
        return module in sys.modules and (module in self._executed or not is_partial(sys.modules[module]))

    def _imported(self, module: str) -> None:
        with self._lock:
            self._executed.add(module)
            rows = [row for row in self._waiting if row.module == module]
            _check(rows)
            with self.all_or_none():
                self._apply(rows)
            self._waiting = [row for row in self._waiting if row.module != module]

    def _apply(self, rows: Iterable[Row]) -> None:
        for row in rows:
            owner = row.holder()
            if row.everywhere:
                self.wrap(owner, row.name, row.make)
            else:
                self.replace(owner, row.name, row.make(getattr(owner, row.name)))

    def replace(self, owner: Any, name: str, value: object) -> None:
        original = getattr(owner, name, _MISSING)
        setattr(owner, name, value)
        self.at_undo(lambda: delattr(owner, name) if original is _MISSING else setattr(owner, name, original))

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Makes calls of the function `owner.name` calls of `make(original)`, by whatever name they reach it: code may
        have bound it before. Of a function written in C, only attributes and the variables of modules are replaced."""
        function = getattr(owner, name)
        if isinstance(function, FunctionType):
            self._redirect(function, make(copied(function)))
            return
        value = make(function)
        self.replace(owner, name, value)
        if isinstance(owner, ModuleType):
            self._rebound[id(function)] = (function, value)

    def _redirect(self, function: FunctionType, target: Callable[..., Any]) -> None:
        code, variables = function.__code__, function.__globals__
        name = f"_torchshare_{next(_numbers)}_{function.__name__}"
        variables[name] = target
        function.__signature__ = _signature(function)  # type: ignore[attr-defined]
        function.__code__ = _calling(name, code)

        def restore() -> None:
            function.__code__ = code
            del function.__signature__  # type: ignore[attr-defined]
            del variables[name]

        self.at_undo(restore)

    def _rebind(self) -> None:
        """In the variables of all modules, as `from time import sleep` makes them: all values in one pass."""
        rebound, self._rebound = self._rebound, {}
        formers = [former for former, _ in rebound.values()]
        for variables, name, former in _C.variables_with(_variables(), formers) if formers else ():
            variables[name] = rebound[id(former)][1]
            self.at_undo(functools.partial(variables.__setitem__, name, former))

    def at_undo(self, restore: Callable[[], None]) -> None:
        self._undo.append(restore)

    @contextlib.contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Undoes what the block has replaced if it raises. Calls of `wrap` belong into one."""
        before, waiting = len(self._undo), list(self._waiting)
        try:
            yield
            self._rebind()
        except BaseException:  # Ctrl-C, too
            self._rebound.clear()
            self._waiting = waiting
            self._undo_to(before)
            if not before:
                self._imports.stop()
            raise

    def undo(self) -> None:
        """Restores everything, the latest first."""
        with self._lock:
            self._imports.stop()
            self._waiting.clear()
            self._undo_to(0)

    def _undo_to(self, count: int) -> None:
        while len(self._undo) > count:
            self._undo.pop()()


def _check(rows: Iterable[Row]) -> None:
    missing = "; ".join(f"{row} ({row.why})" for row in rows if not row.exists())
    if missing:
        raise RuntimeError(f"jobs cannot be isolated: torch {torch.__version__} or another package lacks {missing}")


def _variables() -> Iterator[dict[str, Any]]:
    """The variables of all modules, and what properties of modules hold, as in `torch.backends`."""
    for module in list(sys.modules.values()):
        kind = type(module)
        if not issubclass(kind, ModuleType):
            continue
        yield object.__getattribute__(module, "__dict__")  # past what a class of the module's own makes of it
        if kind is not ModuleType:
            yield from (vars(each) for each in list(vars(kind).values()) if type(getattr(each, "__dict__", 0)) is dict)


def copied(function: Callable[..., Any], variables: dict[str, Any] | None = None) -> FunctionType:
    """Another function with the present code of `function`; in `variables` instead of those of its module."""
    assert isinstance(function, FunctionType)
    globals_ = function.__globals__ if variables is None else variables
    copy = FunctionType(function.__code__, globals_, function.__name__, function.__defaults__, function.__closure__)
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", _ANNOTATIONS):
        setattr(copy, name, getattr(function, name))
    vars(copy).update(vars(function))
    return copy


def _signature(function: FunctionType) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _calling(name: str, code: CodeType) -> CodeType:
    """Code of a function, in place of `code`, that calls the variable `name` of its module."""
    # TorchScript reads the function's source.
    return _template(len(code.co_freevars)).replace(
        co_names=(name,), co_name=code.co_name, co_filename=code.co_filename, co_firstlineno=code.co_firstlineno
    )


@functools.cache
def _template(cells: int) -> CodeType:
    """Code that calls the variable `target`, for functions with this number of cells: their code must have as many."""
    names = ", ".join(f"cell{index}" for index in range(cells))
    namespace: dict[str, Any] = {}
    exec(
        f"def make({names}):\n"
        f" def call(*args, **kwargs):\n"
        f"  if False: return {names or 'None'}\n"
        f"  return target(*args, **kwargs)\n"
        f" return call",
        namespace,
    )
    call: CodeType = next(each for each in namespace["make"].__code__.co_consts if isinstance(each, CodeType))
    assert call.co_names == ("target",), call.co_names
    return call
