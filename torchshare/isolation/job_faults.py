"""`faulthandler` in a job: the module has one of everything per process. Each job gets its own signals and timeout.
What is written at a crash belongs to torchshare's own report, if there is one, else to the job that asked first.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any

from torchshare.context.job_context import JobContext
from torchshare.isolation import interrupt
from torchshare.isolation.patches import Patches

SetHandler = Callable[[JobContext, int, Any], Any]  # returns the former one
Caller = Callable[[], JobContext | None]
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


def route(patches: Patches, caller: Caller, set_handler: SetHandler) -> None:
    """`caller` says which job calls."""
    if not faulthandler.is_enabled():
        patches.at_undo(faulthandler.disable)  # a job may have enabled it
    for name, make in _ROUTED.items():
        original, of_job = getattr(faulthandler, name), make(set_handler)
        patches.replace(faulthandler, name, _routed(original, of_job, caller))


def leave(job: JobContext) -> None:
    """Called at the end of a job."""
    _cancel(job)


def _routed(original: Callable[..., Any], of_job: Callable[..., Any], caller: Caller) -> Callable[..., Any]:
    @functools.wraps(original)
    def routed(*args: Any, **kwargs: Any) -> Any:
        job = caller()
        return original(*args, **kwargs) if job is None else of_job(job, *args, **kwargs)

    return routed


def _of(job: JobContext) -> _Asked:
    return _asked.setdefault(job, _Asked())


def _register(set_handler: SetHandler) -> Callable[..., None]:
    def register(
        job: JobContext, signum: int, file: Any = None, all_threads: bool = True, chain: bool = False, **_: Any
    ) -> None:
        if signum in _FATAL:
            raise RuntimeError(f"signal {signum} cannot be registered, use enable() instead")
        dump = _of(job).dumps.setdefault(int(signum), Dump(None, False))
        dump.file, dump.chain = sys.stderr if file is None else file, chain
        former = set_handler(job, int(signum), dump)
        dump.former = dump.former if former is dump else former

    return register


def _unregister(set_handler: SetHandler) -> Callable[..., bool]:
    def unregister(job: JobContext, signum: int) -> bool:
        dump = _of(job).dumps.pop(int(signum), None)
        if dump is not None:
            set_handler(job, int(signum), dump.former)
        return dump is not None

    return unregister


def _enable(_: SetHandler, original: Callable[..., None] = faulthandler.enable) -> Callable[..., None]:
    def enable(job: JobContext, *args: Any, **kwargs: Any) -> None:
        _of(job).is_enabled = True
        if not _is_enabled_in_process():
            original(*args, **kwargs)

    return enable


_is_enabled_in_process = faulthandler.is_enabled


def _disable(_: SetHandler) -> Callable[..., bool]:
    def disable(job: JobContext) -> bool:
        former, _of(job).is_enabled = _of(job).is_enabled, False
        return former

    return disable


def _later(_: SetHandler) -> Callable[..., None]:
    def dump_traceback_later(
        job: JobContext, timeout: float, repeat: bool = False, file: Any = None, exit: bool = False, **_: Any
    ) -> None:
        if timeout <= 0:
            raise ValueError("timeout must be greater than 0")
        _cancel(job)
        cancelled = _of(job).later = threading.Event()
        arguments = (job, cancelled, timeout, repeat, sys.stderr if file is None else file, exit)
        threading.Thread(target=_wait_and_dump, args=arguments, name="ts-dump", daemon=True).start()

    return dump_traceback_later


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


def _cancel(job: JobContext) -> None:
    asked = _asked.get(job)
    if asked is not None and asked.later is not None:
        asked.later.set()


_ROUTED: dict[str, Callable[[SetHandler], Callable[..., Any]]] = {
    "register": _register,
    "unregister": _unregister,
    "enable": _enable,
    "disable": _disable,
    "is_enabled": lambda _: lambda job: _of(job).is_enabled,
    "dump_traceback_later": _later,
    "cancel_dump_traceback_later": lambda _: _cancel,
}
