"""Modules of scripts: each has its own `__main__`, and its own copy of what it finds outside of installed folders.

An import of such a module in a script's thread goes through importlib's Python code, which reads `sys.path` and
`sys.modules`: those are the script's (see `script_state`). The C code of CPython reads the process's table of modules,
in which each of these names stands for a `_PerScript`, so pickle and multiprocessing find the classes of the script
that calls.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from importlib.machinery import EXTENSION_SUFFIXES, BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from torchshare.context import current
from torchshare.context.script import ScriptContext
from torchshare.isolation.patches import Patches
from torchshare.isolation.table import Table

TABLE = Table()
process_modules: dict[str, ModuleType] = sys.modules  # the table that CPython's C code reads
_former: dict[str, ModuleType] = {}  # what _PerScript modules replaced in it
_replacing = threading.RLock()  # held while a module is replaced: two scripts may import one of a name
os.register_at_fork(after_in_child=_replacing._at_fork_reinit)  # type: ignore[attr-defined]
_with_extensions: dict[str, str] = {}  # paths of the shared packages that are neither installed nor without C code


# Installed packages that keep the state of a run in variables of modules or classes.
STATEFUL = frozenset(
    {
        *("absl", "accelerate", "hydra", "lightning", "lightning_fabric", "pytorch_lightning", "transformers"),
        *("mlflow", "wandb"),
    }
)


def _changed(_script: ScriptContext, _name: str, *_module: ModuleType) -> bool:
    return False


def ask_first(changed: Callable[..., bool]) -> None:
    """`changed` is called before the table of a script, its name and the module change the process's table; without
    module, before one is taken out. True if the module is to be the script's own."""
    global _changed
    _changed = changed


def installed_folders() -> frozenset[str]:
    """The entries of `sys.path` that are not the program's own: neither its folder nor from PYTHONPATH."""
    own = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    entries = sys.path if getattr(sys.flags, "safe_path", False) else sys.path[1:]
    return frozenset(entry for entry in entries if entry and os.path.abspath(entry) not in own)


class _PerScript(ModuleType):
    """Stands for the module of this name of the script that asks."""

    def __getattribute__(self, name: str) -> Any:
        return getattr(_of_this_script(super().__getattribute__("__dict__")["__name__"]), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_of_this_script(super().__getattribute__("__dict__")["__name__"]), name, value)


def _of_this_script(name: str) -> ModuleType:
    script = current.script()
    if script is not None and name in script.own_modules:
        return script.own_modules[name]
    if name in _former:
        return _former[name]
    raise AttributeError(f"module '{name}' was imported by jobs, but not by this one")


class Modules(MutableMapping[str, ModuleType]):
    """A script's `sys.modules`."""

    def __init__(self, script: ScriptContext, installed: frozenset[str]) -> None:
        self._script = script
        self._own = script.own_modules
        self._installed = installed
        self._shared: set[str] = set()  # top-level names of loaded modules that are not the script's own

    def owns(self, name: str) -> bool:
        """Whether the script has, or finds, its own module of this name."""
        top = name.partition(".")[0]
        if top in self._shared:
            return False
        if top in self._own:
            return True
        own = self._finds(top)
        if not own and top in process_modules:
            self._shared.add(top)
        return own

    def _finds(self, top: str) -> bool:
        if BuiltinImporter.find_spec(top) is not None or FrozenImporter.find_spec(top) is not None:
            return False
        spec = PathFinder.find_spec(top, self._script.path)
        if spec is None or not (path := _path_of(spec)) or path.endswith(tuple(EXTENSION_SUFFIXES)):
            return False
        if top in STATEFUL:
            return True
        loaded = process_modules.get(top)
        if type(loaded) is ModuleType and loaded.__spec__ is not None and _path_of(loaded.__spec__) == path:
            return False  # torchshare itself, in a script in its folder
        is_package = spec.submodule_search_locations is not None and spec.origin is not None
        entry = os.path.dirname(os.path.dirname(path) if is_package else path)
        first = os.path.abspath(self._script.path[0]) if self._script.path else ""
        if os.path.abspath(entry) == first:
            return True
        is_new = loaded is None or top in _with_extensions
        if is_new and any(map(_has_extensions, spec.submodule_search_locations or ())):
            return _with_extensions.setdefault(top, path) != path  # one per process, as its C code is
        return entry not in self._installed

    def is_in_process(self, name: str) -> bool:
        """Whether the process's table has the module that the script means."""
        return not self.owns(name) and type(process_modules.get(name)) is not _PerScript

    def __getitem__(self, name: str) -> ModuleType:
        if name in self._own:
            return self._own[name]
        module = _shared_table(name)[name]
        if self.owns(name):
            raise KeyError(name)  # its own is not loaded yet
        return module

    def __setitem__(self, name: str, module: ModuleType) -> None:
        if module is _shared_table(name).get(name) is not None:
            self._own.pop(name, None)  # the script has put back what it has replaced
            return
        if not self.owns(name) and not _changed(self._script, name, module):
            _shared_table(name)[name] = module
            return
        self._own[name] = module
        with _replacing:
            if name in process_modules and type(process_modules[name]) is not _PerScript:
                _former[name] = process_modules[name]
            process_modules[name] = _PerScript(name)

    def __delitem__(self, name: str) -> None:
        if name not in self._own and name in self:
            _changed(self._script, name)
        del (self._own if name in self._own else _shared_table(name))[name]

    def clear(self) -> None:
        """The shared modules stay: `unittest.mock.patch.dict` puts everything back."""
        self._own.clear()

    def _visible(self) -> dict[str, ModuleType]:
        shared = {name: module for name, module in process_modules.copy().items() if type(module) is not _PerScript}
        return shared | _former | self._own

    def __iter__(self) -> Iterator[str]:
        return iter(self._visible())

    def __len__(self) -> int:
        return len(self._visible())

    def copy(self) -> dict[str, ModuleType]:
        return self._visible()


def _shared_table(name: str) -> dict[str, ModuleType]:
    """Where the module of this name is that belongs to no script."""
    return _former if type(process_modules.get(name)) is _PerScript else process_modules


def is_of_process(module: object) -> bool:
    """Whether it is a module that belongs to no script."""
    return any(module is each for table in (process_modules, _former) for each in table.copy().values())


@functools.cache
def _has_extensions(folder: str) -> bool:
    suffixes = tuple(EXTENSION_SUFFIXES)
    return any(file.endswith(suffixes) for _, _, files in os.walk(folder) for file in files)


def _path_of(spec: ModuleSpec) -> str:
    """The file of a module, or the folder of a namespace package."""
    if spec.has_location:
        return spec.origin or ""
    return next(iter(spec.submodule_search_locations or ()), "")


@TABLE.at_start
def _forget_at_undo(patches: Patches) -> None:
    patches.at_undo(_forget)


def _forget() -> None:
    """Takes all _PerScript modules out of the process's table."""
    for name, module in process_modules.copy().items():
        if type(module) is _PerScript:
            del process_modules[name]
    process_modules.update(_former)
    _former.clear()
    _with_extensions.clear()
