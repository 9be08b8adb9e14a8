"""`faulthandler` in a job: the module has one of everything per process. Each job gets its own signals and timeout.
What is written at a crash belongs to torchshare's own report, if there is one, else to the job that asked first.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

from torchshare.context.job_context import JobContext
from torchshare.isolation import interrupt
from torchshare.isolation.job_handlers import program, set_action
from torchshare.isolation.patches import Patches
from torchshare.isolation.table import Table

TABLE = Table()
Function = TypeVar("Function", bound=Callable[..., Any])
_FATAL = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
_dump_traceback = faulthandler.dump_traceback


@dataclasses.dataclass
class Dump:
    """A handler that writes the tracebacks of all threads."""

    file: Any
    chain: bool
    former: Any = signal.SIG_DFL

    def __call__(self, number: int, frame: FrameType | None) -> None:
        _dump_traceback(self.file)
        if not self.chain:
            return
        if callable(self.former):
            self.former(number, frame)
        elif self.former is signal.SIG_DFL:
            raise SystemExit(128 + number)


@dataclasses.dataclass
class _Asked:
    """What a job has asked for."""

    is_enabled: bool = False
    dumps: dict[int, Dump] = dataclasses.field(default_factory=dict)  # by signal
    later: threading.Event | None = None  # set to cancel it


_asked: weakref.WeakKeyDictionary[JobContext, _Asked] = weakref.WeakKeyDictionary()


@TABLE.at_start
def _disable_at_undo(patches: Patches) -> None:
    if not faulthandler.is_enabled():
        patches.at_undo(faulthandler.disable)  # a job may have enabled it


def leave(job: JobContext) -> None:
    """Called at the end of a job."""
    _cancel_dump_traceback_later(job)


def _in_jobs(of_job: Function) -> Function:
    """Declares that the function of faulthandler that has the name of `of_job` calls that in a job."""

    def routed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Each job has its own signals and timeout."""
        job = program()
        return original(*args, **kwargs) if job is None else of_job(job, *args, **kwargs)

    TABLE.call("faulthandler", of_job.__name__.removeprefix("_"))(routed)
    return of_job


def _of(job: JobContext) -> _Asked:
    return _asked.setdefault(job, _Asked())


@_in_jobs
def _register(
    job: JobContext, signum: int, file: Any = None, all_threads: bool = True, chain: bool = False, **_: Any
) -> None:
    if signum in _FATAL:
        raise RuntimeError(f"signal {signum} cannot be registered, use enable() instead")
    dump = _of(job).dumps.setdefault(int(signum), Dump(None, False))
    dump.file, dump.chain = sys.stderr if file is None else file, chain
    former = set_action(job, int(signum), dump)
    dump.former = dump.former if former is dump else former


@_in_jobs
def _unregister(job: JobContext, signum: int) -> bool:
    dump = _of(job).dumps.pop(int(signum), None)
    if dump is not None:
        set_action(job, int(signum), dump.former)
    return dump is not None


_enable_in_process, _is_enabled_in_process = faulthandler.enable, faulthandler.is_enabled


@_in_jobs
def _enable(job: JobContext, *args: Any, **kwargs: Any) -> None:
    _of(job).is_enabled = True
    if not _is_enabled_in_process():
        _enable_in_process(*args, **kwargs)


@_in_jobs
def _disable(job: JobContext) -> bool:
    former, _of(job).is_enabled = _of(job).is_enabled, False
    return former


@_in_jobs
def _is_enabled(job: JobContext) -> bool:
    return _of(job).is_enabled


@_in_jobs
def _dump_traceback_later(
    job: JobContext, timeout: float, repeat: bool = False, file: Any = None, exit: bool = False, **_: Any
) -> None:
    if timeout <= 0:
        raise ValueError("timeout must be greater than 0")
    _cancel_dump_traceback_later(job)
    cancelled = _of(job).later = threading.Event()
    arguments = (job, cancelled, timeout, repeat, sys.stderr if file is None else file, exit)
    threading.Thread(target=_wait_and_dump, args=arguments, name="ts-dump", daemon=True).start()


def _wait_and_dump(
    job: JobContext, cancelled: threading.Event, timeout: float, repeat: bool, file: Any, exits: bool
) -> None:
    while not cancelled.wait(timeout):
        os.write(
            file if isinstance(file, int) else file.fileno(), f"Timeout ({timedelta(seconds=timeout)})!\n".encode()
        )
        _dump_traceback(file)
        if exits:
            interrupt.end(job, 1)
        if exits or not repeat:
            return


@_in_jobs
def _cancel_dump_traceback_later(job: JobContext) -> None:
    asked = _asked.get(job)
    if asked is not None and asked.later is not None:
        asked.later.set()
