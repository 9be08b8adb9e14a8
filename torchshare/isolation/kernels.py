"""Kernels that a job registers with `torch.library` for ops of torch and other packages: an op has one set of them."""

from __future__ import annotations

import functools
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


def route(patches: Patches) -> None:
    present = frozenset(each.partition("::")[0] for each in torch._C._dispatch_get_all_op_names())
    patches.wrap(Library, "impl", functools.partial(_registering, present))


def _registering(present: frozenset[str], original: Callable[..., None]) -> Callable[..., None]:
    """`present`: namespaces of the ops that were loaded before the first runtime was opened."""

    @functools.wraps(original)
    def impl(self: Library, op_name: Any, fn: Callable[..., Any], dispatch_key: str = "", **options: Any) -> None:
        tenant = current.tenant()
        op = _qualified(self.ns, op_name)
        is_defined_here = op in torch.library._defs  # with `Library.define`
        if tenant is not None and not is_defined_here and (self.ns in present or packages.is_shared(tenant, self.ns)):
            frame = _caller()
            if packages.author(frame) not in ("torch", "torchshare") and not packages.being_imported(frame):
                library, what = weakref.ref(self), f"the kernel of {op} for {dispatch_key or self.dispatch_key}"
                where = shared_changes.line_of(frame)
                change = Change("torch", what, "an op has one kernel", where, lambda: _destroy(library()))
                shared_changes.make(tenant, change)
        original(self, op_name, fn, dispatch_key, **options)

    return impl


def _qualified(namespace: str, op: Any) -> str:
    name = op if isinstance(op, str) else f"{op._schema.name}.{op._schema.overload_name}".rstrip(".")
    return f"{namespace}::{name.rpartition('::')[2]}"


def _destroy(library: Library | None) -> None:
    if library is not None:
        library._destroy()  # type: ignore[no-untyped-call]


def _caller() -> FrameType:
    """The frame of the code that calls `torch.library`."""
    frame = sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(
        ("torch.library", "torch._library")
    ):
        frame = frame.f_back
    return frame
