from __future__ import annotations

import atexit
import importlib
import logging
import os
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar

import torch

from torchshare import _C, _current, _routing, _signals
from torchshare._batches import check_sub_batch
from torchshare._bound import BoundReport, report
from torchshare._errors import BudgetExceeded, Cancelled, JobFailed, described
from torchshare._gaps import GapReport, gap_reports
from torchshare._interrupt import PROCESS_CODE, Interrupter
from torchshare._job import Job
from torchshare._profile import Profile, as_profile, check_count
from torchshare._results import ENDED, Results

log = logging.getLogger("torchshare")

_SIGNAL_CHECK_S = 0.05  # how long Ctrl-C may go unnoticed in wait()
_LIBRARY = (sysconfig.get_path("stdlib"), os.path.dirname(__file__), "<frozen ")  # stdlib has site-packages in it
_IMPATIENT = 2  # signals during close() that end its waiting
_PATIENCE_S = 1.6  # for jobs that are blocked outside torch, in close()


class Runtime:
    """Runs jobs together on one device, in this process.

    Args:
        device: "cuda" or "cuda:1" for a GPU, "cpu", or "auto": the first GPU where there is one. On a GPU, every job
            has a CUDA stream of its own, with the priority of its level, and that is its current stream.
        policy: who may enter an op. "priority": everybody, the device's scheduler keeps the order (SCHED_IDLE for lower
            jobs on the CPU, the streams' priorities on a GPU). "strict": a job waits while a higher one is inside an
            op, or was within `grace` seconds; on a GPU, also while the higher one's stream has work.
            "best_fit": also into shorter gaps, where its op is expected to end before the higher job returns, and
            not into longer ones where it is not (FIKIT, arXiv 2311.10359). It learns how long ops and gaps are, or
            has it from the jobs' profiles. See `gap_report`. "resource": as "best_fit", and an op that moves memory may
            run beside one that computes, or the other way round.
        max_wait: seconds after which an op of a lower job is let in whatever the policy says. Default: never.
        run_ahead: on a GPU, seconds of work that a lower job may have launched and the GPU not done yet, as predicted:
            a higher job that comes back waits for no more. Default there: 500 us with policies that make jobs wait.
        device_priority: False leaves the order to the policy alone.
        max_slowdown: a bound on the primary's slowdown, 0.05 for 5 %: its own steps, with and without the others beside
            it, set how much the others may run. See `bound_report`.
        secondary_share: instead of a bound, the share of the time in which jobs that another outranks may run.
        timeline_capacity: events kept of each job, and of all states and decisions; the oldest go first.

    Raises:
        ValueError: for an argument that makes no sense, before any work starts.
        RuntimeError: inside a job.
    """

    def __init__(
        self,
        device: str = "auto",
        *,
        policy: str = "priority",
        grace: float = 200e-6,
        max_wait: float | None = None,
        run_ahead: float | None = None,
        device_priority: bool = True,
        max_slowdown: float | None = None,
        secondary_share: float | None = None,
        timeline_capacity: int = 1_000_000,
    ) -> None:
        if not isinstance(timeline_capacity, int) or timeline_capacity < 1:
            raise ValueError(f"timeline_capacity is {timeline_capacity!r}; expected a whole number, at least 1")
        if not 0 <= grace <= 1:
            raise ValueError(f"grace is {grace!r}; expected seconds, 0 to 1")
        if max_wait is not None and not 0 < max_wait < float("inf"):
            raise ValueError(f"max_wait is {max_wait!r}; expected seconds, above 0")
        if run_ahead is not None and not 0 < run_ahead <= 1:
            raise ValueError(f"run_ahead is {run_ahead!r}; expected seconds, above 0, at most 1")
        # The first optimizer would import it, inside a job: a second or two that is not the job's own time.
        importlib.import_module("torch._dynamo")
        _C.keep_cuda_stand_in()
        if device != "cpu" and torch.cuda.is_available():
            torch.cuda.init()  # type: ignore[no-untyped-call]
        self._native = _C.Runtime(
            device,
            policy,
            grace,
            max_wait,
            run_ahead,
            device_priority,
            max_slowdown,
            secondary_share,
            timeline_capacity,
        )
        self._max_slowdown = max_slowdown
        self._jobs: list[Job] = []
        self._interrupter = Interrupter()
        _routing.install()
        # Runs at close, when the runtime is dropped, or when the interpreter ends; whichever comes first.
        self._closer = _Closer(self._native, self._jobs, self._interrupter)
        weakref.finalize(self, self._closer.drop).atexit = False  # type: ignore[misc]  # a property

    @property
    def device(self) -> str:
        return self._native.device

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(self._jobs)

    @property
    def results(self) -> Results:
        """What every job has done so far."""
        return Results([job.result for job in self._jobs])

    def submit(
        self,
        function: Callable[[Job], Any],
        *,
        name: str | None = None,
        priority: str = "secondary",
        start: str | float = "now",
        sub_batch: int | None = None,
        threads: int | None = None,
        seed: int = 0,
        steps: int | None = None,
        epochs: int | None = None,
        profile: Profile | str | os.PathLike[str] | None = None,
        meter_memory: bool = False,
        memory_budget: int | None = None,
        sms: int | None = None,
        record_ops: bool = False,
    ) -> Job:
        """Adds a job that calls `function(job)` in a thread of its own.

        It is pending until `start()` or `wait()`; in a runtime that was started, it goes by its own `start` at once.

        Args:
            name: default: the function's name. Unique in this runtime.
            priority: "primary", "secondary" or "level-0" (= primary) to "level-9".
            start: "now", "after:<job>" (when that job has ended), "step:<k>" (when the primary has done k steps or has
                ended), seconds after submission, or "auto": when that makes the average completion time of the pair
                least. With profiles that is planned; without, found out by a probe of a few steps of each job alone and
                of both. An "auto" job may be held meanwhile, and so may the one beside it, unless there is a
                `max_slowdown`.
            sub_batch: the default of `job.batches`.
            threads: intra-op threads. Default: `torch.get_num_threads()`. Bit-identity holds at equal `threads`.
            steps, epochs: how long the job is, where that is known; "auto" goes by it. Without either, by the length of
                its loader, else it takes the job to be as long as the other.
            profile: what `torchshare.profile` measured, or the file it is in.
            meter_memory: count the job's tensors for `Result.memory_peak`; costs a lock per allocation. Jobs on a GPU
                always do.
            memory_budget: bytes that the job's tensors may take on the device, workspaces of cuBLAS and cuDNN included.
                What goes over it raises `BudgetExceeded` in this job.
            sms: streaming multiprocessors of the GPU that the job's work may use (a green context). The driver rounds;
                `Job.sms` is what it gave.
            record_ops: time every op of the job, for `torchshare.profile`.
            seed: of the job's random state: torch, `random` and `numpy.random` start as if seeded with it.

        Raises:
            ValueError, TypeError: naming the job, the value and what was expected.
        """
        if not callable(function):
            raise TypeError(f"the job's function is {function!r}; expected a callable that takes a Job")
        name = getattr(function, "__name__", "job") if name is None else name
        if not isinstance(name, str):
            raise TypeError(f"a job's name is {name!r}; expected a string")
        threads = torch.get_num_threads() if threads is None else threads
        if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= 1024:
            raise ValueError(f"job '{name}': threads is {threads!r}; expected a whole number, 1 to 1024")
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
            raise ValueError(f"job '{name}': seed is {seed!r}; expected a whole number, 0 to 2**64 - 1")
        if isinstance(start, bool) or not isinstance(start, (str, int, float)):
            raise ValueError(f"job '{name}': start is {start!r}; expected a string or seconds")
        check_count(name, "steps", steps)
        check_count(name, "epochs", epochs)
        check_count(name, "memory_budget", memory_budget)
        check_count(name, "sms", sms)
        sub_batch = check_sub_batch(name, sub_batch)
        known = None if profile is None else as_profile(name, profile, function)
        job = Job(name, sub_batch, seed, epochs, self._interrupter)
        try:
            job._native = self._native.submit(
                lambda native: _run(job, native, function),
                name,
                priority,
                start if isinstance(start, str) else repr(start),
                threads,
                seed,
                steps,
                None if known is None else known.native(sub_batch, priority),
                meter_memory,
                memory_budget,
                sms,
                record_ops,
                [] if known is None or known.ops is None else known.ops.native(),
                Cancelled,
                BudgetExceeded,
                PROCESS_CODE,
            )
        except ValueError as error:
            text = str(error)
            raise ValueError(text if f"'{name}'" in text else f"job '{name}': {text}") from None
        self._jobs.append(job)
        return job

    def start(self) -> None:
        """Checks every job's `start` condition, then lets the jobs go. Until the runtime is closed, SIGTERM ends the
        program as `sys.exit(143)` does, unless it has a handler of its own.

        Raises:
            ValueError: for a condition that names an unknown job, or the job itself, or a cycle.
            RuntimeError: where no thread can be made. The jobs that have none stay pending; another call tries again.
        """
        self._closer.open()
        self._native.start()

    def wait(self, timeout: float | None = None, *, check: bool = True) -> Results:
        """Starts the jobs where need be and waits until all have ended. Ctrl-C cancels them and is raised again.

        Raises:
            JobFailed: after all have ended, if one failed, unless `check` is False.
            TimeoutError: after `timeout` seconds; the jobs go on.
            RuntimeError: inside one of its jobs, which would wait for itself.
        """
        self._refuse_inside("wait")
        self.start()
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        try:
            while not self._native.wait(min(_SIGNAL_CHECK_S, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    running = [job.name for job in self._jobs if job.state not in ENDED]
                    raise TimeoutError(f"after {timeout} s, still not ended: {', '.join(running)}")
        except (KeyboardInterrupt, SystemExit):
            self.close()
            raise
        results = self.results
        if check:
            _raise_failures(results)
        return results

    def cancel(self) -> None:
        """Cancels every job; see Job.cancel."""
        self._native.cancel_all()
        for job in self._jobs:
            self._interrupter.watch(job)

    def close(self) -> None:
        """Cancels the jobs that have not ended, and waits for them; one that does not stop is left behind. The results
        and the timeline can still be read.

        Ctrl-C during that is raised when it is done. A second one leaves behind what has not stopped by then.

        Raises:
            RuntimeError: inside one of its jobs, which would wait for itself.
        """
        self._refuse_inside("close")
        with _signals.deferred() as stops:
            self._closer.close(stops)

    def _refuse_inside(self, what: str) -> None:
        job = _current.job()
        if job in self._jobs:
            raise RuntimeError(f"job '{job.name}': {what}() would wait for this job itself; call it outside the jobs")

    def write_timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes what happened as a Chrome trace, for https://ui.perfetto.dev. OSError when it cannot."""
        try:
            self._native.write_timeline(os.fspath(path))
        except RuntimeError as error:
            raise OSError(str(error)) from None

    def bound_report(self) -> list[BoundReport]:
        """How `max_slowdown` was kept: one for each job that lower jobs ran beside. Prints as a line."""
        if self._max_slowdown is None:
            return []
        events = self.events()
        reports = (report(job, self._jobs, events, self._max_slowdown) for job in self._jobs)
        return [found for found in reports if found is not None]

    def gap_report(self) -> list[GapReport]:
        """With policy="best_fit", what the gaps of each job that outranks another were good for. Prints as a line."""
        return gap_reports(self._jobs)

    def events(self) -> list[_C.Event]:
        """The timeline: (kind, job, begin in ns, end in ns, index, detail), in order of recording."""
        return self._native.events()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Waits for the jobs, as an executor does; on an exception, cancels them instead."""
        try:
            if error is None and any(job.state not in ENDED for job in self._jobs):
                self.wait()
        finally:
            self.close()


class _Closer:
    """What ends a runtime, once; it outlives the Runtime object."""

    _all: ClassVar[set[_Closer]] = set()  # of started runtimes

    def __init__(self, native: _C.Runtime, jobs: list[Job], interrupter: Interrupter) -> None:
        self._native = native
        self._jobs = jobs
        self._interrupter = interrupter
        self._process = os.getpid()
        self._once = threading.Lock()
        self._is_open = False

    def open(self) -> None:
        """Jobs may run from here on. RuntimeError where no thread can be made."""
        if not self._is_open and not self._once.locked():
            self._interrupter.start()
            self._is_open = True
            self._all.add(self)
            _signals.install()

    def close(self, stops: _signals.Stops) -> None:
        """A forked child has nothing to close: threads and signals are its parent's."""
        if os.getpid() != self._process or not self._once.acquire(blocking=False):
            return
        try:
            self._native.begin_close()
            for job in self._jobs:
                self._interrupter.watch(job)
            self._wait(stops)
            places = {job.name: _place_of(job) for job in self._jobs}
            for name in self._native.close(0):
                log.warning("job '%s' was cancelled, but its thread %s and was left behind", name, places[name])
        finally:
            self._interrupter.close()
            _routing.uninstall()
            if self._is_open:
                self._all.discard(self)
                _signals.uninstall()

    def _wait(self, stops: _signals.Stops) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        told = False
        while not self._native.wait(_SIGNAL_CHECK_S) and time.monotonic() < deadline and stops.count < _IMPATIENT:
            if stops.count and not told:
                told = True
                names = ", ".join(job.name for job in self._jobs if job.state not in ENDED)
                log.warning("waiting for jobs to stop: %s. Ctrl-C again leaves them behind", names)

    def drop(self) -> None:
        """Its Runtime object is gone: perhaps on the thread of one of the jobs, which cannot wait for itself."""
        if _current.job() in self._jobs:
            threading.Thread(target=self.drop, name="ts-closer", daemon=True).start()
            return
        with _signals.deferred() as stops:
            self.close(stops)

    @classmethod
    def close_all(cls) -> None:
        """At the interpreter's end."""
        with _signals.deferred(forget=True) as stops:
            for closer in list(cls._all):
                closer.close(stops)


atexit.register(_Closer.close_all)


def _place_of(job: Job) -> str:
    """Where in its own code the job's thread is, in words."""
    frame = sys._current_frames().get(job._thread)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY) and frame.f_back is not None:
        frame = frame.f_back
    if frame is None:
        return "is not in Python"
    return f"is still at {frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


def _run(job: Job, native: _C.Job, function: Callable[[Job], Any]) -> None:
    """The body of a job, in its thread. What it raises decides the job's state."""
    job._native = native  # Runtime.submit may not have come to it yet
    job._thread = threading.get_ident()
    with _current.entered(job):
        try:
            value = function(job)
            if native.is_in_body:  # else it was given up, and its result is final
                job._value = value
        except Cancelled:
            raise
        except SystemExit as error:
            if error.code:
                job._exception = error
                log.error("job '%s' called sys.exit(%r) after %d steps", job.name, error.code, job.result.steps)
                raise
        except BaseException as error:
            job._exception = error
            if not native.cancel_requested:
                log.error("job '%s' failed after %d steps", job.name, job.result.steps, exc_info=True)
            raise


def _raise_failures(results: Results) -> None:
    failed = [result for result in results.values() if result.state == "failed"]
    if failed:
        texts = [f"job '{r.name}' failed after {r.steps} steps: {described(r.exception)}" for r in failed]
        raise JobFailed("; ".join(texts), results) from failed[0].exception
