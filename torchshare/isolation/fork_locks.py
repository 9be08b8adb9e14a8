"""Locks of modules at a fork. A thread of another job that waits for the GIL may hold one, such as torch's while it
seeds its generators, or may be importing a module. In the child, nothing would release that lock.

Note [Locks at a fork]
A plain lock does not know who holds it. One that the forking thread holds itself, as in `with LOCK: process.start()`,
must stay locked in the child, and it is held at every look. So a fork looks again and again until no lock is held,
`_LONGEST_S` at most. In the child, all locks are freed except for plain ones that were held at every look. Such a lock
may belong to another job, which has held it for longer. The next fork waits only `_AGAIN_S` for it.

The caller lets one thread fork at a time."""

from __future__ import annotations

import importlib._bootstrap
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchshare.isolation.imports import is_partial
from torchshare.isolation.script_modules import process_modules

_LONGEST_S = 2.0
_AGAIN_S = 0.05
_PLAIN = type(threading.Lock())
_LOCKS = (_PLAIN, type(threading.RLock()))

_known: list[Any] = []  # the locks that are variables of modules
_searched: set[str] = set()  # names of modules
_modules = -1  # the number of all, if none was partial at the last search
_outlasted: set[Any] = set()  # locks that a fork has waited for in vain


class Looks:
    """What a fork finds each time that it looks at the locks."""

    def __init__(self) -> None:
        self._since = 0.0
        self._always: set[Any] | None = None

    def may_fork(self) -> bool:
        """Looks, and returns whether no lock is held, or the time is over."""
        held = {*filter(_is_held, _locks()), *_imports_of_others().values()}
        now = time.monotonic()
        if self._always is None:
            self._since, self._always = now, held
        self._always &= held
        return not held or now - self._since >= (_AGAIN_S if held <= _outlasted else _LONGEST_S)

    def fork(self, original: Callable[[], int]) -> int:
        """Frees the locks in the child. Modules that other threads were importing are imported there again."""
        assert self._always is not None
        _outlasted.update(self._always)
        child = original()
        if child == 0:
            for lock in _known:
                if not (type(lock) is _PLAIN and lock in self._always) and _is_held(lock):
                    lock._at_fork_reinit()
            for name in _imports_of_others():
                del importlib._bootstrap._module_locks[name]  # type: ignore[attr-defined]
                if is_partial(process_modules.get(name)):
                    for each in [each for each in process_modules if f"{each}.".startswith(f"{name}.")]:
                        del process_modules[each]
        return child


def _locks() -> list[Any]:
    global _modules
    if len(process_modules) == _modules:
        return _known  # looking at modules writes to their memory, which is slow after a fork
    modules = [(name, module) for name, module in list(process_modules.items()) if type(module) is ModuleType]
    for name, module in modules:
        if name not in _searched and not is_partial(module):
            _searched.add(name)
            _known.extend(value for value in list(vars(module).values()) if _is_lock(value))
    _modules = -1 if any(is_partial(module) for _, module in modules) else len(process_modules)
    return _known


def _is_lock(value: Any) -> bool:
    """Whether `_is_held` and the child can use it: the lock of a condition may be of any class."""
    return type(value) in _LOCKS or (type(value) is threading.Condition and type(value._lock) in _LOCKS)  # type: ignore[attr-defined]


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
