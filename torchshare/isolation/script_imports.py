"""Imports in scripts find the script's own modules first."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from torchshare.context import current
from torchshare.isolation import replacements
from torchshare.isolation.patches import Patches
from torchshare.isolation.table import Table

TABLE = Table()


@TABLE.at_start
def _call_tensor_first(_: Patches) -> None:
    """The first call of torch.tensor imports torch.storage in the initializer of a static variable of C++. In a script,
    that import is Python code, which lets other threads run: one that calls torch.tensor would wait for the initializer
    with the interpreter lock held, for ever."""
    with contextlib.suppress(RuntimeError):
        torch.tensor(None)  # imports, and then runs no op, which would count as one of the job that opens the runtime


@TABLE.call("builtins", "__import__")
def _import(
    original: Callable[..., ModuleType],
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Any = (),
    level: int = 0,
) -> ModuleType:
    """A script has its own modules, see `script_modules`."""
    script = current.script()
    if script is None:
        return original(name, globals, locals, fromlist, level)
    if level == 0:
        replacements.imported(script, name.partition(".")[0])
    full = name if level == 0 or globals is None else globals.get("__package__") or ""
    if script.modules.is_in_process(full.partition(".")[0]):  # type: ignore[attr-defined]
        return original(name, globals, locals, fromlist, level)
    return importlib.__import__(name, globals, locals, fromlist, level)
