"""Interrupts cancelled jobs that run no op, outside of code that must not be unwound."""

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
        "importlib.",  # an interrupted import leaves a partial module
        "_frozen_importlib.",
        "logging.",
        "threading.start",
        "multiprocessing.process.start",
        "multiprocessing.util.",
        "multiprocessing.resource_tracker.",
        "subprocess.__init__",
        "torchshare.scripts.output.",
        "torchshare.memory.spill.__init__",
        "torchshare.memory.spill.restore",
        "torchshare.isolation.interrupt.fork",  # runs at-fork handlers of other modules
    ],
    with_turn=[
        "torch.fx._symbolic_trace.",
        "torch.fx.experimental.proxy_tensor.",
        "torch.autograd.forward_ad.",
    ],
)
"""Prefixes of "module.function" of code that holds process-wide locks or partial state: a job is not unwound inside
it. The second list holds only while the job has its turn (see `compiling`)."""


class Interrupter:
    """Interrupts cancelled jobs that do not reach an op in time, as soon as they are outside PROCESS_CODE. Runs in its
    own thread from `start` to `close`."""

    def __init__(self) -> None:
        self._cancelled: queue.SimpleQueue[JobContext | None] = queue.SimpleQueue()  # its `put` is reentrant
        self._thread = threading.Thread(target=self._serve, name="ts-interrupter", daemon=True)

    def start(self) -> None:
        """Starts the thread. Raises RuntimeError if it cannot be created."""
        if not self._thread.is_alive():
            self._thread.start()

    def watch(self, job: JobContext) -> None:
        """Called when the job was cancelled."""
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
    """Repeats a cancellation that is lost in a `__del__` or a callback; gives os.fork a frame, see PROCESS_CODE."""
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
