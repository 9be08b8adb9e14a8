"""Kernels that a job registers with `torch.library` for ops of torch and other packages: an op has one set of them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.library import Library

from torchshare.context import current
from torchshare.isolation import packages, shared_changes
from torchshare.isolation.patches import Patches
from torchshare.isolation.shared_changes import Change
from torchshare.isolation.table import Table

TABLE = Table()

_present: set[str] = set()
"""Namespaces of the ops that were loaded before the first runtime was opened."""


@TABLE.at_start
def _note_present(_patches: Patches) -> None:
    _present.clear()
    _present.update(each.partition("::")[0] for each in torch._C._dispatch_get_all_op_names())


@TABLE.call("torch.library:Library", "impl", everywhere=True)
def _impl(
    original: Callable[..., None],
    self: Library,
    op_name: Any,
    fn: Callable[..., Any],
    dispatch_key: str = "",
    **options: Any,
) -> None:
    """A kernel of an op of torch is refused, or holds for all jobs: an op has one set of kernels."""
    tenant = current.tenant()
    op = _qualified(self.ns, op_name)
    is_defined_here = op in torch.library._defs  # with `Library.define`
    if tenant is not None and not is_defined_here and (self.ns in _present or packages.is_shared(tenant, self.ns)):
        frame = _caller()
        if packages.author(frame) not in ("torch", "torchshare") and not packages.being_imported(frame):
            library, what = weakref.ref(self), f"the kernel of {op} for {dispatch_key or self.dispatch_key}"
            where = shared_changes.line_of(frame)
            change = Change(tenant, "torch", what, "an op has one kernel", where, lambda: _destroy(library()))
            shared_changes.make(change)
    original(self, op_name, fn, dispatch_key, **options)


def _qualified(namespace: str, op: Any) -> str:
    name = op if isinstance(op, str) else f"{op._schema.name}.{op._schema.overload_name}".rstrip(".")
    return f"{namespace}::{name.rpartition('::')[2]}"


def _destroy(library: Library | None) -> None:
    if library is not None:
        library._destroy()  # type: ignore[no-untyped-call]


def _caller() -> FrameType:
    """The frame of the code that calls `torch.library`."""
    frame = sys._getframe(2)
    between = (__package__, "torch.library", "torch._library")
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(between):
        frame = frame.f_back
    return frame
