"""Interrupts cancelled jobs that run no op, outside of code that must not be unwound."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from torchshare import _C
from torchshare.context import current
from torchshare.context.errors import Cancelled
from torchshare.context.patience import Patience
from torchshare.isolation.table import Table

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

log = logging.getLogger("torchshare")

TABLE = Table()
INTERRUPT_AFTER_S = 0.1
PATIENCE_S = 1.6  # how long the end of a job waits for threads that are blocked outside torch

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
        "torchshare.isolation.routing.leave_job",
        "torchshare.isolation.job_signals.fork",  # runs at-fork handlers of other modules
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
                # Without a timeout: CPython computes the remaining time again, and waits for ever if it is negative.
                job = self._cancelled.get(block=not due)
            except queue.Empty:
                time.sleep(INTERRUPT_AFTER_S / 2)
            else:
                if job is None:
                    return
                due[job] = time.monotonic() + INTERRUPT_AFTER_S
            for waiting, when in list(due.items()):
                if time.monotonic() >= when and waiting.handle.interrupt():
                    del due[waiting]


_lock = threading.RLock()  # guards JobContext.thread and the set; a signal may come while it is held
_not_raised: set[JobContext] = set()
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


def raise_in(job: JobContext, error: BaseException) -> None:
    """Raises `error` in the job's thread before its next bytecode, as soon as that is outside of PROCESS_CODE."""
    carrier = _carrier(job, error)
    if not _try_to_raise(job, carrier):
        threading.Thread(target=_raise_later, args=(job, carrier), name="ts-raise", daemon=True).start()


def _raise_later(job: JobContext, carrier: type[BaseException]) -> None:
    while not _try_to_raise(job, carrier):
        time.sleep(INTERRUPT_AFTER_S / 2)


def _try_to_raise(job: JobContext, carrier: type[BaseException]) -> bool:
    with _lock:
        if job.thread == 0:
            return True  # it has ended
        _not_raised.add(job)
        return PROCESS_CODE.raise_in(job.thread, carrier)


def leave(job: JobContext) -> None:
    """Called at the end of a job, in its thread."""
    with _lock:
        thread, job.thread = job.thread, 0
        if job in _not_raised:
            _not_raised.discard(job)
            PROCESS_CODE.raise_in(thread, None)


def _carrier(job: JobContext, error: BaseException) -> type[BaseException]:
    """A class that makes `error`: Python raises no objects in other threads."""

    def make(_cls: Any, *_: Any) -> BaseException:
        _not_raised.discard(job)
        return error

    kind = type(error)
    try:
        return type(kind.__name__, (kind,), {"__new__": make, "__module__": kind.__module__})
    except TypeError:  # it has no subclasses
        return type(kind.__name__, (BaseException,), {"__new__": make, "__module__": kind.__module__})


def end(job: JobContext, status: int) -> None:
    """Ends a job from another of its threads, as `os._exit` ends a program: even if its own does not run Python."""
    raise_in(job, SystemExit(status))
    threading.Thread(target=_leave_behind, args=(job, status), name="ts-exit", daemon=True).start()


def _leave_behind(job: JobContext, status: int) -> None:
    for step in (None, job.handle.cancel, job.handle.give_up):
        if step is not None:
            step()
        patience = Patience([job], PATIENCE_S, INTERRUPT_AFTER_S / 2)
        while patience.spend():
            if job.handle.has_left:
                return
            time.sleep(INTERRUPT_AFTER_S / 2)
    log.warning(
        "job '%s' has ended by os._exit(%r); its thread does not run Python and was left behind", job.name, status
    )


@TABLE.call("sys", "unraisablehook")
def _unraisable(original: Any, lost: Any) -> None:
    """A cancellation that is lost in a `__del__` or a callback is repeated."""
    job = current.job()
    if job is None or not isinstance(lost.exc_value, Cancelled):
        original(lost)
    else:
        job.handle.repeat_cancel()
        job.watch_cancel(job)
