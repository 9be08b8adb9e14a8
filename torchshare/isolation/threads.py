"""Threads that a job starts draw from its random state, and find what it has replaced. Their ops are not gated."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from torchshare import _C
from torchshare.context import current
from torchshare.isolation.patches import Patches


def route(patches: Patches) -> None:
    patches.replace(threading.Thread, "start", _remembering(threading.Thread.start))
    # `run` may be overridden, or be an attribute of the thread.
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    patches.replace(threading.Thread, "_bootstrap_inner", _adopted(bootstrap))


def _remembering(original: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        self._torchshare_owner = current.owner()  # type: ignore[attr-defined]
        original(self)

    return start


def _adopted(original: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(original)
    def _bootstrap_inner(self: threading.Thread) -> None:
        job = getattr(self, "_torchshare_owner", None)
        if job is None:
            original(self)
            return
        with current.adopted(job), _C.Adopted(job.handle):
            original(self)

    return _bootstrap_inner
