"""Reaches cancelled jobs that run no op, and says where no job may be unwound."""

from __future__ import annotations

import functools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchshare import _C
from torchshare.context import current
from torchshare.context.errors import Cancelled

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

INTERRUPT_AFTER_S = 0.1

PROCESS_CODE = _C.ProcessCode(
    always=[
        "importlib.",  # a module whose import is cut short stays half made
        "_frozen_importlib.",
        "logging.",
        "threading.start",
        "multiprocessing.process.start",
        "multiprocessing.util.",
        "multiprocessing.resource_tracker.",
        "subprocess.__init__",
        "torchshare.isolation.interrupt.fork",  # functions that others have registered run then
    ],
    with_turn=[
        "torch.fx._symbolic_trace.",
        "torch.fx.experimental.proxy_tensor.",
        "torch.autograd.forward_ad.",
    ],
)
"""Code that holds locks, or half-made state, of the whole process, as beginnings of "module.function": a job is not
unwound while it runs some. The second list is of code that does so while the job has its turn (see `compiling`)."""


class Interrupter:
    """Gives cancelled jobs time to reach an op, where they unwind in order, and then interrupts them wherever they are,
    as soon as that harms nobody. A thread of its own, from `start` to `close`."""

    def __init__(self) -> None:
        self._cancelled: queue.SimpleQueue[JobContext | None] = queue.SimpleQueue()  # its `put` may be called anywhere
        self._thread = threading.Thread(target=self._serve, name="ts-interrupter", daemon=True)

    def start(self) -> None:
        """RuntimeError where no thread can be made."""
        if not self._thread.is_alive():
            self._thread.start()

    def watch(self, job: JobContext) -> None:
        """The job was cancelled."""
        self._cancelled.put(job)

    def close(self) -> None:
        self._cancelled.put(None)

    def _serve(self) -> None:
        due: dict[JobContext, float] = {}
        while True:
            try:
                job = self._cancelled.get(timeout=INTERRUPT_AFTER_S / 2 if due else None)
            except queue.Empty:
                pass
            else:
                if job is None:
                    return
                due[job] = time.monotonic() + INTERRUPT_AFTER_S
            for waiting, when in list(due.items()):
                if time.monotonic() >= when and waiting.handle.interrupt():
                    del due[waiting]


def route(replace: Any) -> None:
    """Has a cancellation that is lost, in a `__del__` or a callback, come again; makes forks known by their name."""
    replace(sys, "unraisablehook", _routed_unraisable(sys.unraisablehook))
    replace(os, "fork", _routed_fork(os.fork))


def _routed_unraisable(original: Any) -> Any:
    def unraisable(lost: Any) -> None:
        job = current.job()
        if job is None or not isinstance(lost.exc_value, Cancelled):
            original(lost)
        else:
            job.handle.repeat_cancel()
            job.watch_cancel(job)

    return unraisable


def _routed_fork(original: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(original)
    def fork() -> int:
        return original()

    return fork
