"""The job and the script of the calling thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeAlias

    import torch

    from torchshare import _C
    from torchshare.context.job_context import JobContext
    from torchshare.context.script import ScriptContext

    Tenant: TypeAlias = JobContext | ScriptContext


class _Thread(threading.local):
    job: JobContext | None = None
    script: ScriptContext | None = None
    owner: JobContext | None = None
    adopted: _C.Adopted | _C.Serving | None = None
    forked_by: JobContext | None = None


_thread = _Thread()


def job() -> JobContext | None:
    """The job of the calling thread. None in other threads, and in processes that a job forks (DataLoader workers)."""
    return _thread.job


def owner() -> JobContext | None:
    """The job of the calling thread, or whose code started the thread. None in processes that a job forks."""
    return _thread.owner


@contextlib.contextmanager
def entered(job: JobContext) -> Iterator[None]:
    """Makes `job` the job of the calling thread."""
    _thread.job = job
    with adopted(job):
        try:
            yield
        finally:
            _thread.job = None


@contextlib.contextmanager
def adopted(job: JobContext, thread: _C.Adopted | _C.Serving | None = None) -> Iterator[None]:
    """Makes the calling thread one that `job` has started, or that serves its requests."""
    former = _thread.owner, _thread.adopted
    _thread.owner, _thread.adopted = job, thread
    try:
        yield
    finally:
        _thread.owner, _thread.adopted = former


def synchronize() -> bool:
    """Waits until the device has done what the calling thread's job has launched. Returns False in other threads."""
    if _thread.job is not None:
        _thread.job.handle.synchronize()
        return True
    return _thread.adopted is not None and _thread.adopted.synchronize()


def generator() -> torch.Generator | None:
    """What the calling thread's ops draw from on the CPU: its job's generator, or its own if it serves the job's
    requests. None outside jobs, where it is torch's default generator."""
    handle = _handle()
    return None if handle is None else handle.generator


def device_generator() -> torch.Generator | None:
    """The generator of the calling thread's job on its device, if there is one."""
    handle = _handle()
    return None if handle is None else handle.device_generator


def _handle() -> _C.Job | _C.Adopted | _C.Serving | None:
    if _thread.adopted is not None:
        return _thread.adopted
    return None if _thread.owner is None else _thread.owner.handle


def script() -> ScriptContext | None:
    """The script that the calling thread runs, or whose code started the thread or forked the process."""
    return _thread.script


def tenant() -> Tenant | None:
    """Whose code the thread runs: the script, else the job; in processes that it forked, too."""
    return _thread.script or _thread.owner or _thread.forked_by


def environ() -> dict[bytes, bytes] | None:
    """The environment of the thread's script or job, if that is not the process's."""
    if _thread.script is not None:
        return _thread.script.environ
    return None if _thread.job is None else _thread.job.environ


def set_script(script: ScriptContext | None) -> None:
    _thread.script = script


@contextlib.contextmanager
def outside_script() -> Iterator[None]:
    """For code of the process that reads `sys.stdout` and the like in a script's thread."""
    script, _thread.script = _thread.script, None
    try:
        yield
    finally:
        _thread.script = script


def _forget() -> None:
    _thread.forked_by = _thread.owner or _thread.forked_by
    _thread.job = _thread.owner = _thread.adopted = None


os.register_at_fork(after_in_child=_forget)
