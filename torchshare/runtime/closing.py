"""Closes a runtime at `close`, when it is dropped, or at interpreter exit, whichever comes first."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import itertools
import logging
import os
import sysconfig
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torchshare import _C
from torchshare.context.job_context import JobContext
from torchshare.context.patience import Patience
from torchshare.context.rank import this_rank
from torchshare.context.results import ENDED
from torchshare.isolation import routing
from torchshare.isolation.interrupt import PATIENCE_S, Interrupter
from torchshare.runtime import signals
from torchshare.runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from torchshare.runtime.checkpointing import Folder
    from torchshare.runtime.ranks import Ranks

log = logging.getLogger("torchshare")

# Prefixes of files that are not the user's code. The standard library's folder contains site-packages.
_LIBRARY = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]), "<frozen ")
_GIVE_UP_SIGNALS = 2  # so many signals during close() end its wait


class Closer:
    """Closes a runtime, once. Outlives the Runtime object."""

    _all: ClassVar[set[Closer]] = set()  # closers of runtimes that were started, or dropped while no thread could be

    _numbers: ClassVar[Iterator[int]] = itertools.count()
    _own_numbers: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, handle: _C.Runtime, ranks: bool, folder: Folder | None, stuck_after: float) -> None:
        """With `ranks`, the runtime runs together with those of other ranks, if there are any. `stuck_after`: see
        Watchdog."""
        self._handle = handle
        self._folder = folder
        self._joins_ranks = ranks and this_rank().count > 1
        # The others are not counted: ranks may differ in their number.
        number = str(next(self._numbers)) if ranks else f"own{next(self._own_numbers)}"
        self.number = f"{this_rank().restarts}.{number}"
        self.jobs: list[JobContext] = []  # that have not ended
        self.ranks: Ranks | None = None
        self._interrupter = Interrupter()
        self._watchdog = Watchdog(self.jobs, stuck_after)
        self._process = os.getpid()
        self._once = threading.Lock()
        self._opening = threading.Lock()
        self._closing_thread = 0
        self._done = threading.Event()
        self._is_open = False

    def cancel(self) -> None:
        """Cancels every job."""
        self._handle.cancel_all()
        self._watch_cancels()
        self._tell_of_cancels()

    def expect(self, job: JobContext) -> None:
        """Called when a job has been submitted."""
        self.forget_unbegun()
        self.jobs.append(job)

    def forget_unbegun(self) -> None:
        """Jobs that were cancelled before they began have no thread that calls `leave`, or tells other ranks."""
        for job in [each for each in self.jobs if each.handle.state in ENDED and not each.thread]:
            routing.forget_job(job)
            self.leave(job)
            if job.handle.error:
                self.tell_ranks(job, "ended", "was not started")

    def leave(self, job: JobContext) -> None:
        """Called at the end of a job."""
        with contextlib.suppress(ValueError):
            self.jobs.remove(job)

    def watch_cancel(self, job: JobContext) -> None:
        """Delivers the cancellation of a job even if it runs no op."""
        self._interrupter.watch(job)
        self.forget_unbegun()

    def _watch_cancels(self) -> None:
        for job in list(self.jobs):
            self._interrupter.watch(job)

    def _tell_of_cancels(self) -> None:
        """A job that has not started has no thread that tells it."""
        for job in list(self.jobs):
            if job.handle.state not in ("finished", "failed"):
                self.tell_ranks(job, "ended", "was cancelled")

    def join_ranks(self) -> None:
        """Called before jobs may run. Raises RuntimeError if other ranks run other jobs."""
        if self.ranks is None and self._joins_ranks and not self._once.locked():
            from torchshare.runtime.ranks import Ranks

            self.ranks = Ranks(self._handle, self.number, self.jobs, self._cancel_job, self.forget_unbegun)

    def _cancel_job(self, job: JobContext) -> None:
        job.handle.cancel()
        self._interrupter.watch(job)

    def tell_ranks(self, job: JobContext, what: str, text: str) -> None:
        """Tells other ranks what has happened to a job."""
        if self.ranks is not None:
            self.ranks.tell(job, what, text)

    def newest_common(self, job: JobContext, steps: list[int]) -> int | None:
        """The newest of a job's checkpoints that all ranks have."""
        if job.has_own_ranks:
            from torchshare.runtime.ranks import meet, newest_common

            job.store = meet(job)
            return newest_common(job.store, job, steps)
        return max(steps, default=None) if self.ranks is None else self.ranks.newest_common(job, steps)

    def ended_elsewhere(self, job: JobContext) -> bool:
        """Whether the job has ended on another rank, unsuccessfully."""
        return self.ranks is not None and self.ranks.ended_elsewhere(job)

    def open(self) -> None:
        """Called before jobs may run. Raises RuntimeError if no thread can be created."""
        with self._opening:
            if not self._is_open and not self._once.locked():
                self._interrupter.start()
                self._watchdog.start()
                self._is_open = True
                self._all.add(self)
                signals.install()

    def close(self, stops: signals.Stops) -> None:
        """Closes the runtime. A forked child has nothing to close: threads and signal handlers are its parent's."""
        if os.getpid() != self._process:
            return
        if not self._once.acquire(blocking=False):
            self._wait_for_the_other(stops)
            return
        self._closing_thread = threading.get_ident()
        try:
            self._end_jobs(stops)
        except MemoryError:
            self._once.release()  # it is closed by another call, or when the Runtime is collected
            raise
        except BaseException:
            self._clean_up()
            raise
        self._clean_up()

    def _end_jobs(self, stops: signals.Stops) -> None:
        if self._folder is not None and signals.terminating():
            self._folder.save_all(list(self.jobs), lambda: self._wait_a_moment(stops))
        self._handle.begin_close()
        self._watch_cancels()
        self._tell_of_cancels()
        self._wait(stops)
        states = {job.name: _thread_state(job) for job in list(self.jobs)}
        for name in self._handle.close(0):
            state = states.get(name, "has not come to its end")
            log.warning("job '%s' was cancelled, but its thread %s and was left behind", name, state)

    def _clean_up(self) -> None:
        self.forget_unbegun()
        if self._folder is not None:
            self._folder.close()
        if self.ranks is not None:
            self.ranks.close()
        self._interrupter.close()
        self._watchdog.close()
        routing.uninstall()
        self._all.discard(self)
        if self._is_open:
            signals.uninstall()
        self._done.set()

    def _wait_for_the_other(self, stops: signals.Stops) -> None:
        """Waits for the thread that closes the runtime. That thread itself may get here: a finalizer of the user's that
        closes the runtime may run in it."""
        if self._closing_thread != threading.get_ident():
            while not self._done.wait(signals.CHECK_S) and stops.count < _GIVE_UP_SIGNALS:
                pass

    def _wait(self, stops: signals.Stops) -> None:
        patience, told = Patience(self.jobs, PATIENCE_S, signals.CHECK_S), False
        while not self._handle.wait(signals.CHECK_S) and patience.spend() and stops.count < _GIVE_UP_SIGNALS:
            if stops.count and not told:
                told = True
                names = ", ".join(job.name for job in list(self.jobs) if job.handle.state not in ENDED)
                log.warning("waiting for jobs to stop: %s; Ctrl-C again leaves them behind", names)

    def _wait_a_moment(self, stops: signals.Stops) -> int:
        self._handle.wait(signals.CHECK_S)
        return stops.count

    def drop(self) -> None:
        """Called when the Runtime is collected: on any thread, a job's too, in the middle of anything, with any lock
        held. So it waits for nothing, as `threading.Thread.start` would."""
        if not self._once.locked() and os.getpid() == self._process:
            try:
                _thread.start_new_thread(self._close_dropped, ())
            except RuntimeError:  # there are too many, or the interpreter exits: left to close_all, as if it were open
                self._all.add(self)

    def _close_dropped(self) -> None:
        names = ", ".join(f"'{job.name}'" for job in list(self.jobs))
        jobs = f" while its jobs run: {names}" if names else ""
        try:
            warnings.warn(f"a Runtime was dropped without close(){jobs}", ResourceWarning, stacklevel=1)
        finally:
            self.close(signals.Stops())

    @classmethod
    def close_all(cls) -> None:
        """Closes all started runtimes at interpreter exit."""
        with signals.deferred(forget=True) as stops:
            for closer in list(cls._all):
                closer.close(stops)


atexit.register(Closer.close_all)


def _thread_state(job: JobContext) -> str:
    """Where the thread of the job is in the user's code, for messages."""
    places = _C.stack_of(job.thread)
    if not places:
        return "is not in Python"
    file, line, function = next((place for place in reversed(places) if not place[0].startswith(_LIBRARY)), places[0])
    return f"is still at {file}:{line} ({function})"
