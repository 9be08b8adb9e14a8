"""Installs the patches that give each script a process state of its own, while any script runs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from torchshare.context import current
from torchshare.context.script import ScriptContext
from torchshare.isolation import (
    replacements,
    script_imports,
    script_logging,
    script_modules,
    script_process,
    script_start_method,
    script_state,
    shared_changes,
)
from torchshare.isolation.patches import Patches

_MODULES = (script_state, script_logging, script_modules, script_imports, script_process, script_start_method)
TABLES = [module.TABLE for module in _MODULES]
_lock = threading.Lock()  # guards the variables below
_running = 0
_patches = Patches()
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


@contextlib.contextmanager
def entered(script: ScriptContext) -> Iterator[None]:
    """Makes `script` the script of the calling thread."""
    global _running
    with _lock:
        if _running == 0:
            _patches.apply(TABLES)
        _running += 1
    current.set_script(script)
    shared_changes.enter(script)
    try:
        yield
    finally:
        replacements.leave(script)
        current.set_script(None)
        with _lock:
            _running -= 1
            if _running == 0:
                _patches.undo()
