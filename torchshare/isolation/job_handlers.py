"""What each job does at signals, and the job whose code the calling thread runs."""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
from dataclasses import dataclass
from typing import Any

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.context.script import ScriptContext
from torchshare.isolation import process_signals

log = logging.getLogger("torchshare")


@dataclass
class Handler:
    """What a job does at a signal."""

    script: ScriptContext | None
    action: Any
    """A function, SIG_IGN or SIG_DFL."""


lock = threading.RLock()  # guards `by_signal`; a signal may come while it is held
by_signal: dict[int, dict[JobContext, Handler]] = {}  # in order of registration
running: list[JobContext] = []  # jobs whose handlers the main thread runs, the innermost last


def handled() -> JobContext | None:
    """The job whose handler the calling thread runs, as the main thread does it."""
    return running[-1] if running and process_signals.is_main_thread() else None


def caller() -> JobContext | None:
    """The job whose main thread the caller is, as it sees it."""
    return handled() or current.job()


def program() -> JobContext | None:
    """The job whose code the caller is, in any of its threads."""
    return caller() or current.owner()


def set_action(job: JobContext, number: int, action: Any) -> Any:
    """Returns the former one. Raises as `signal.signal` does."""
    if not 0 < number < signal.NSIG:
        raise ValueError("signal number out of range")
    if not (callable(action) or action in (signal.SIG_DFL, signal.SIG_IGN)):
        raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise OSError(22, os.strerror(22))
    former, default = action_of(job, number), default_action(number)
    with lock:
        if action is default:
            by_signal.get(number, {}).pop(job, None)
        else:
            by_signal.setdefault(number, {})[job] = Handler(current.script(), action)
    if action is default or action is signal.SIG_DFL or process_signals.is_taken(number):
        return former
    if not process_signals.in_main_thread(functools.partial(process_signals.take, [number])):
        log.warning("job '%s': %s has no effect until the main thread runs Python", job.name, name_of(number))
    return former


def name_of(number: int) -> str:
    return signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"


def action_of(job: JobContext, number: int) -> Any:
    handler = by_signal.get(number, {}).get(job)
    return default_action(number) if handler is None else handler.action


def default_action(number: int) -> Any:
    """What a program begins with."""
    found = process_signals.handler_of_program(number)
    if number == signal.SIGINT and found is not signal.SIG_IGN:
        return signal.default_int_handler
    return signal.SIG_DFL if callable(found) else found
