"""Locks of modules at a fork. A thread of another job that waits for the GIL may hold one, such as torch's while it
seeds its generators, or may be importing a module. In the child, nothing would release that lock.

The caller holds a lock while it forks, so these functions run in one thread at a time."""

from __future__ import annotations

import importlib._bootstrap
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchshare.isolation.imports import is_partial
from torchshare.isolation.script_modules import process_modules

_LOCK = type(threading.Lock())
_LOCKS = (_LOCK, type(threading.RLock()), threading.Condition)

_known: list[Any] = []  # the locks that are variables of modules
_searched: set[str] = set()  # names of modules
_modules = -1  # the number of all, if none was partial at the last search
_held: set[Any] = set()  # locks that were held at the last fork


def _search() -> None:
    global _modules
    if len(process_modules) == _modules:
        return  # looking at modules writes to their memory, which is slow after a fork
    modules = [(name, module) for name, module in list(process_modules.items()) if type(module) is ModuleType]
    for name, module in modules:
        if name not in _searched and not is_partial(module):
            _searched.add(name)
            _known.extend(value for value in list(vars(module).values()) if type(value) in _LOCKS)
    _modules = -1 if any(is_partial(module) for _, module in modules) else len(process_modules)


def _is_held(lock: Any) -> bool:
    """Whether another thread holds it or, if it is not reentrant, this one."""
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True


def _imports_of_others() -> dict[str, Any]:
    """importlib's locks of the modules that other threads are importing, by name."""
    references: dict[str, Any] = importlib._bootstrap._module_locks  # type: ignore[attr-defined]
    locks = {name: reference() for name, reference in list(references.items())}
    own = (None, threading.get_ident())
    return {name: lock for name, lock in locks.items() if lock and (lock.owner not in own or _is_held(lock.lock))}


def _held_now() -> set[Any]:
    _search()
    return {*filter(_is_held, _known), *_imports_of_others().values()}


def are_free() -> bool:
    """Whether no lock is held, except for those that were held at the last fork, too."""
    return _held_now() <= _held


def fork(original: Callable[[], int]) -> int:
    """Frees the locks in the child. Modules that other threads were importing are imported there again."""
    held = _held_now()
    _held.clear()
    _held.update(held)
    child = original()
    if child == 0:
        for lock in _known:
            may_be_own = lock in held and type(lock) is _LOCK
            if not may_be_own and _is_held(lock):
                lock._at_fork_reinit()
        for name in _imports_of_others():
            del importlib._bootstrap._module_locks[name]  # type: ignore[attr-defined]
            if is_partial(process_modules.get(name)):
                del process_modules[name]
    return child
