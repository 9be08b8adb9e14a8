from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_MISSING = object()
_numbers = itertools.count()


class Patches:
    """Attributes and functions replaced by others until `undo`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._rebound: dict[int, tuple[object, object]] = {}  # by id: former and new value of variables of modules

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
        function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        function.__code__ = _calling(name, code)

        def restore() -> None:
            function.__code__ = code
            del function.__signature__  # type: ignore[attr-defined]
            del variables[name]

        self.at_undo(restore)

    def _rebind(self) -> None:
        """In the variables of all modules, as `from time import sleep` makes them: all values in one pass."""
        rebound, self._rebound = self._rebound, {}
        for module in list(sys.modules.values()) if rebound else ():
            variables = module.__dict__ if type(module) is ModuleType else {}
            if rebound.keys().isdisjoint(map(id, variables.copy().values())):
                continue
            for name, each in variables.copy().items():
                former, value = rebound.get(id(each), (None, None))
                if former is not None:
                    variables[name] = value
                    self.at_undo(functools.partial(variables.__setitem__, name, former))

    def at_undo(self, restore: Callable[[], None]) -> None:
        self._undo.append(restore)

    @contextlib.contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Undoes what the block has replaced if it raises. Calls of `wrap` belong into one."""
        before = len(self._undo)
        try:
            yield
            self._rebind()
        except BaseException:  # Ctrl-C, too
            self._rebound.clear()
            self._undo_to(before)
            raise

    def undo(self) -> None:
        """Restores everything, the latest first."""
        self._undo_to(0)

    def _undo_to(self, count: int) -> None:
        while len(self._undo) > count:
            self._undo.pop()()


def copied(function: Callable[..., Any], variables: dict[str, Any] | None = None) -> FunctionType:
    """Another function with the present code of `function`; in `variables` instead of those of its module."""
    assert isinstance(function, FunctionType)
    globals_ = function.__globals__ if variables is None else variables
    copy = FunctionType(function.__code__, globals_, function.__name__, function.__defaults__, function.__closure__)
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        setattr(copy, name, getattr(function, name))
    vars(copy).update(vars(function))
    return copy


def _calling(name: str, code: CodeType) -> CodeType:
    """Code of a function, in place of `code`, that calls the variable `name` of its module."""
    cells = ", ".join(f"cell{index}" for index in range(len(code.co_freevars)))  # a function's code must have as many
    namespace: dict[str, Any] = {}
    exec(
        f"def make({cells}):\n"
        f" def call(*args, **kwargs):\n"
        f"  if False: return {cells or 'None'}\n"
        f"  return {name}(*args, **kwargs)\n"
        f" return call",
        namespace,
    )
    call: CodeType = next(each for each in namespace["make"].__code__.co_consts if isinstance(each, CodeType))
    # TorchScript reads the function's source.
    return call.replace(co_name=code.co_name, co_filename=code.co_filename, co_firstlineno=code.co_firstlineno)
