"""Jobs that run together must agree on what torch has once per process and what changes results.

The highest job decides. A lower job that sets another value waits until the higher ones have set it too or are about to
step, and is then refused; a job that has not set what the others run with is refused before its first batch or step. A
refused job fails, or with on_disagree="primary" goes on with the other value and a warning.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchshare import _core
from torchshare.context.job_context import JobContext

log = logging.getLogger("torchshare")

_POLL_S = 0.005
_TELL_S = 1.0  # a job that waits for longer says so
_PATIENCE_S = 20.0  # how long a lower job waits for the higher ones to set the same


@dataclass(eq=False)
class Setting:
    """A setting, as the user writes it."""

    name: str
    value: Callable[[], Any]
    write: Callable[[Any], object]
    former: Any = None
    """The value before a job set another one, while `wanted` has any."""
    wanted: dict[JobContext, Any] = field(default_factory=dict)
    """What running jobs have set."""
    told: weakref.WeakSet[JobContext] = field(default_factory=weakref.WeakSet)
    """Jobs that have been warned."""

    def refused(self, job: JobContext) -> Refusal | None:
        """Why the job cannot go on, if another runs with a value that this one has not set."""
        if not self.wanted:
            return None
        value, own = self.value(), self.wanted.get(job, self.former)
        others = [other for other, wanted in self.wanted.items() if other is not job and wanted == value]
        if own == value or not others or job in self.told:
            return None
        return Refusal(job, self, min(others, key=_order), value, own)


@dataclass
class Refusal:
    """A job that does not get the value it wants."""

    job: JobContext
    setting: Setting
    other: JobContext
    value: Any
    wanted: Any

    def deliver(self, caller: JobContext) -> None:
        """Without the lock: handlers of logs are the user's code."""
        job, setting = self.job, self.setting
        if job.on_disagree == "primary":
            if job not in setting.told:
                setting.told.add(job)
                log.warning(
                    "job '%s': %s is %s, as job '%s' runs with it, and not %s",
                    *(job.name, setting.name, self.value, self.other.name, self.wanted),
                )
            return
        text = (
            f"job '{job.name}': {setting.name} is one per process, and job '{self.other.name}' runs with {self.value}, "
            f"not {self.wanted}; set the same in both, run them in two processes, or let the higher job decide "
            "(on_disagree='primary')"
        )
        if job is caller:
            raise RuntimeError(text)
        log.error("job '%s' is cancelled: %s", job.name, text)
        job.watch_cancel(job)


# Reentrant: what torch warns of, and the garbage collector, may run code that sets a setting in turn.
_lock = threading.RLock()  # guards the variables below, and the settings
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
_numbers = itertools.count()
_jobs: weakref.WeakKeyDictionary[JobContext, int] = weakref.WeakKeyDictionary()  # and their order
_settings: list[Setting] = []


def begin(settings: list[Setting]) -> None:
    """Called when the first runtime opens."""
    _settings[:] = settings


def expect(job: JobContext) -> None:
    """Called before a job's thread can run."""
    with _lock:
        _jobs[job] = next(_numbers)


def leave(job: JobContext) -> None:
    """Called at the end of a job. A value that no running job has set goes back to the former one."""
    with _lock:
        _jobs.pop(job, None)
        for setting in _settings:
            if job in setting.wanted:
                del setting.wanted[job]
                value = setting.value()
                if setting.former not in (None, value) and value not in setting.wanted.values():
                    setting.write(setting.former)


def check(job: JobContext, *, steps: bool) -> None:
    """Called before a job's first batches and, with `steps`, before its first optimizer step. Raises RuntimeError if
    the job has not set what another runs with."""
    with _lock:
        job.has_stepped |= steps  # under the lock: a job that sets another value from now on finds it
        refusals = [refusal for setting in _settings if (refusal := setting.refused(job)) is not None]
        if job.on_disagree == "primary":
            for refusal in [each for each in refusals if _outranks(job, each.other)]:
                refusals.remove(refusal)
                refusals += _take(refusal.setting, job, refusal.wanted)
    for refusal in refusals:
        refusal.deliver(job)


def agree(setting: Setting, job: JobContext, value: Any) -> None:
    """Sets the value, in one step with finding that the job may. Raises RuntimeError if jobs that run with another one
    outrank it."""
    began = time.monotonic()
    told = False
    while True:
        with _lock:
            if setting.value() == value:
                if setting.wanted:
                    setting.wanted[job] = value
                return
            opposed = [other for other in list(_jobs) if _opposes(other, job)]
            if not opposed:
                refusals = _take(setting, job, value)
                break
            waited = time.monotonic() - began
            settled = [other for other in opposed if other in setting.wanted or _has_begun(other)]
            if settled or waited > _PATIENCE_S:
                refusals = [Refusal(job, setting, (settled or opposed)[0], setting.value(), value)]
                break
        if waited > _TELL_S and not told:
            told = True
            log.warning(
                "job '%s' waits for job '%s' to set %s to %s too, %.0f s at most",
                *(job.name, opposed[0].name, setting.name, value, _PATIENCE_S),
            )
        job.handle.sleep(_POLL_S)
    for refusal in refusals:
        refusal.deliver(job)


def _take(setting: Setting, job: JobContext, value: Any) -> list[Refusal]:
    """The job decides. Returns the jobs that have begun with another value; those that do not go on are cancelled."""
    present = setting.value()
    setting.write(value)  # raises for an invalid one
    if not setting.wanted:
        setting.former = present
    setting.wanted[job] = value
    lost = [other for other in list(_jobs) if other is not job and _has_begun(other)]
    refusals = [refusal for other in lost if (refusal := setting.refused(other)) is not None]
    for refusal in refusals:
        if refusal.job.on_disagree == "error":
            refusal.job.handle.cancel()
    return refusals


def _has_begun(job: JobContext) -> bool:
    """Whether it has done steps, or is about to do the first, with the values that it has set."""
    return job.has_stepped or (hasattr(job, "handle") and job.handle.stats().steps > 0)


def _opposes(other: JobContext, job: JobContext) -> bool:
    """Whether `other` runs, or may be about to, and outranks the job."""
    runs = hasattr(other, "handle") and other.handle.state in ("pending", "running", "suspended")
    return runs and _outranks(other, job)


def _outranks(other: JobContext, job: JobContext) -> bool:
    """Of two equal jobs, the earlier one does."""
    others, priority = other.handle.priority, job.handle.priority
    return _core.outranks(others, priority) or (others == priority and _order(other) < _order(job))


def _order(job: JobContext) -> int:
    return _jobs.get(job, -1)
