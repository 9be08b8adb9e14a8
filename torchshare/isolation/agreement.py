"""Jobs that run together must agree on what torch has once per process and what changes results.

The highest job decides. A lower job that sets another value waits until the higher ones have set it too or are about to
step, and is then refused; a job that has not set what the others run with is refused before its first batch, backward
pass, step or saved file, or at its end if it has run an op meanwhile, even if the others have ended. A refused job
fails, or with on_disagree="primary" goes on with the other value and a warning.
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
from torchshare.context import current
from torchshare.context.errors import described
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
    exposed: dict[JobContext, Exposure] = field(default_factory=dict)
    """Running jobs that do not want its value, or have run ops with one that they did not want."""
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

    def expose(self, ops: dict[JobContext, int] | None = None) -> None:
        """Called when its value, or what jobs want, has changed, after jobs had begun `ops`, by default those of now. A
        job that has begun none with what it did not want is not concerned."""
        for job in list(_jobs):
            exposure = self.exposed.get(job)
            if exposure is not None and exposure.is_harmless():
                del self.exposed[job]
                exposure = None
            if exposure is None:
                self.expose_job(job, None if ops is None else ops.get(job, 0))

    def expose_job(self, job: JobContext, ops: int | None = None) -> None:
        refusal = self.refused(job)
        if refusal is not None:
            self.exposed[job] = Exposure(refusal, job.ops_begun() if ops is None else ops)

    def settle(self, job: JobContext, value: Any) -> list[Refusal]:
        """The job has set the value. Returns why it cannot go on, if it has run ops with it before."""
        exposure = self.exposed.get(job)
        if exposure is None or exposure.refusal.value != value:
            return []
        if exposure.is_harmless():
            del self.exposed[job]
            return []
        exposure.refusal.is_late = True
        return [exposure.refusal]


@dataclass
class Exposure:
    """A job that runs with a value that it does not want."""

    refusal: Refusal
    since: int
    """The ops that the job had begun before; negative: it has been refused, or has forked a process."""

    def is_harmless(self) -> bool:
        return self.refusal.job.ops_begun() == self.since


@dataclass
class Refusal:
    """A job that does not get the value it wants."""

    job: JobContext
    setting: Setting
    other: JobContext
    value: Any
    wanted: Any
    is_late: bool = False
    """Whether the job has set the value, too, but after it had run ops."""

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
        if job is caller:
            raise RuntimeError(self.text())
        log.error("job '%s' is cancelled: %s", job.name, self.text())
        job.watch_cancel(job)

    def text(self) -> str:
        if self.is_late:
            return (
                f"job '{self.job.name}': {self.setting.name} is one per process, and the job has run ops with "
                f"{self.value}, as job '{self.other.name}' has set it, before it set the same; set it before the first "
                "op, or run them in two processes"
            )
        return (
            f"job '{self.job.name}': {self.setting.name} is one per process, and job '{self.other.name}' runs with "
            f"{self.value}, not {self.wanted}; set the same in both, run them in two processes, or let the higher job "
            "decide (on_disagree='primary')"
        )


# Reentrant: what torch warns of, and the garbage collector, may run code that sets a setting in turn.
_lock = threading.RLock()  # guards the variables below, and the settings
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
_numbers = itertools.count()
_jobs: weakref.WeakKeyDictionary[JobContext, int] = weakref.WeakKeyDictionary()  # and their order
_settings: list[Setting] = []


def begin() -> None:
    """Called when the first runtime opens, before the settings are added."""
    _settings.clear()


def add(*settings: Setting) -> None:
    """The first one that a job disagrees on is named first."""
    _settings.extend(settings)


def expect(job: JobContext) -> None:
    """Called before a job's thread can run."""
    with _lock:
        _jobs[job] = next(_numbers)
        for setting in _settings:
            setting.expose_job(job)


def enter(job: JobContext) -> None:
    """Called before a job's code runs. With on_disagree="primary" it gets its values from lower jobs at once."""
    if job.on_disagree != "primary":
        return
    with _lock:
        lower = [each.refusal for each in _exposures(job) if _outranks(job, each.refusal.other)]
        taken = [_take(each.setting, job, each.wanted) for each in lower]
    for refusal in itertools.chain(*taken):
        refusal.deliver(job)


def leave(job: JobContext) -> None:
    """Called at the end of a job. A value that no running job has set goes back to the former one."""
    with _lock:
        _jobs.pop(job, None)
        for setting in _settings:
            setting.exposed.pop(job, None)
            if job in setting.wanted:
                del setting.wanted[job]
                value = setting.value()
                if setting.former not in (None, value) and value not in setting.wanted.values():
                    setting.write(setting.former)
                setting.expose()


def check(job: JobContext, *, steps: bool) -> None:
    """Called before a job's first batches, backward passes, saved files and, with `steps`, before its first optimizer
    step. Raises RuntimeError if the job has not set what another runs with, or ran with while this one did."""
    with _lock:
        job.has_stepped |= steps  # under the lock: a job that sets another value from now on finds it
        refusals = [each.refusal for each in _exposures(job)]
    for refusal in refusals:
        refusal.deliver(job)


def check_end(job: JobContext, error: BaseException | None = None) -> None:
    """Called at the end of a job's code. Raises RuntimeError if it has run ops with what it had not set, which may be
    why it has failed."""
    with _lock:
        refusals = [each.refusal for each in _exposures(job) if not each.is_harmless()]
    if not job.handle.cancel_requested and described(error) not in [
        described(RuntimeError(each.text())) for each in refusals
    ]:
        for refusal in refusals:
            refusal.deliver(job)


def _exposures(job: JobContext) -> list[Exposure]:
    found = [setting.exposed[job] for setting in _settings if job in setting.exposed]
    return [each for each in found if job not in each.refusal.setting.told]


def agree(setting: Setting, job: JobContext, value: Any) -> None:
    """Sets the value, in one step with finding that the job may. Raises RuntimeError if jobs that run with another one
    outrank it. Called in any thread of the job."""
    began = time.monotonic()
    told = False
    while True:
        with _lock:
            if job not in _jobs:
                raise RuntimeError(f"job '{job.name}' has ended: its thread cannot set {setting.name}")
            if setting.value() == value:
                refusals = setting.settle(job, value)
                if setting.wanted:
                    setting.wanted[job] = value
                break
            opposed = [other for other in list(_jobs) if _opposes(other, job)]
            if not opposed:
                refusals = _take(setting, job, value)
                break
            waited = time.monotonic() - began
            settled = [other for other in opposed if other in setting.wanted or _has_begun(other)]
            if settled or waited > _PATIENCE_S:
                refusals = [Refusal(job, setting, (settled or opposed)[0], setting.value(), value)]
                setting.exposed[job] = Exposure(refusals[0], -1)
                break
        if waited > _TELL_S and not told:
            told = True
            log.warning(
                "job '%s' waits for job '%s' to set %s to %s too, %.0f s at most",
                *(job.name, opposed[0].name, setting.name, value, _PATIENCE_S),
            )
        time.sleep(_POLL_S)  # of the job, in its own thread
    for refusal in refusals:
        refusal.deliver(job)


def _take(setting: Setting, job: JobContext, value: Any) -> list[Refusal]:
    """The job decides. Returns the jobs that have begun with another value; those that do not go on are cancelled."""
    present = setting.value()
    ops = {other: other.ops_begun() for other in list(_jobs)}
    setting.write(value)  # raises for an invalid one
    if not setting.wanted:
        setting.former = present
    setting.wanted[job] = value
    late = setting.settle(job, value)
    setting.expose(ops)
    lost = [other for other in list(_jobs) if other is not job and _has_begun(other)]
    refusals = [refusal for other in lost if (refusal := setting.refused(other)) is not None]
    for refusal in refusals:
        if refusal.job.on_disagree == "error":
            refusal.job.handle.cancel()
    return refusals + late


def _before_fork() -> None:
    """The child keeps the values of now."""
    job = current.owner()
    with _lock:
        for exposure in [] if job is None else _exposures(job):
            exposure.since = -1


os.register_at_fork(before=_before_fork)


def _has_begun(job: JobContext) -> bool:
    """Whether it has done steps, or is about to do the first, with the values that it has set."""
    return job.has_stepped or (hasattr(job, "handle") and job.handle.stats().steps > 0)


def _opposes(other: JobContext, job: JobContext) -> bool:
    """Whether `other` runs, or may be about to, and outranks the job."""
    runs = hasattr(other, "handle") and other.handle.state in ("pending", "running", "suspended")
    return runs and _outranks(other, job)


def _outranks(other: JobContext, job: JobContext) -> bool:
    """Whether `other` outranks the job. The earlier of two equal jobs outranks the later one."""
    others, priority = other.handle.priority, job.handle.priority
    return _core.outranks(others, priority) or (others == priority and _order(other) < _order(job))


def _order(job: JobContext) -> int:
    return _jobs.get(job, -1)
