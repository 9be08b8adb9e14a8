"""Calls back when modules are imported for the first time."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Imports(MetaPathFinder):
    """While it is in `sys.meta_path`, calls `imported` with the name of a watched module when that has been executed,
    before its import returns, in the thread that imports it. Not for built-in modules."""

    def __init__(self, imported: Callable[[str], None]) -> None:
        self._imported = imported
        self._watched: set[str] = set()

    def watch(self, names: Iterable[str]) -> None:
        """Returns when no thread is importing one of the modules without being watched."""
        self._watched.update(names)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        for name in self._watched:
            if is_partial(sys.modules.get(name)):
                importlib.import_module(name)  # waits for the thread that imports it

    def stop(self) -> None:
        self._watched.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._watched:
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader, name)
        return spec

    def _follow(self, loader: Any, name: str) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._imported(name)

        loader.exec_module = exec_module


def is_partial(module: ModuleType | None) -> bool:
    """Whether a thread is importing the module."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
