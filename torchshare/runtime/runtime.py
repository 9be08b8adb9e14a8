from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from torchshare import _C, _core
from torchshare.context import current, interpreter_lock
from torchshare.context.errors import JobFailed, described
from torchshare.context.importing import import_large
from torchshare.context.rank import this_rank
from torchshare.context.results import ENDED, Results
from torchshare.device import devices
from torchshare.durable.files import replacing
from torchshare.isolation import environment, routing
from torchshare.runtime import signals
from torchshare.runtime.attempts import Attempts
from torchshare.runtime.bound import BoundReport, report
from torchshare.runtime.checkpointing import folder_of
from torchshare.runtime.closing import Closer
from torchshare.runtime.declared import check, documented, fill, with_defaults, with_present_names
from torchshare.runtime.effects import Effects
from torchshare.runtime.gaps import GapReport, gap_reports
from torchshare.runtime.job import Job
from torchshare.runtime.options import JobOptions, RuntimeOptions

if TYPE_CHECKING:
    from torchshare.runtime.job_timelines import Event
    from torchshare.runtime.metrics import Snapshot
    from torchshare.runtime.sharing import SharingReport

log = logging.getLogger("torchshare")


class Runtime:
    """Runs jobs together on one device, in this process."""

    @documented(RuntimeOptions)
    def __init__(self, device: str = "auto", **options: Unpack[RuntimeOptions]) -> None:
        """
        Args:
            device: "cuda:1" for a GPU; "cuda" for the current one, as torch has it (the first, unless the program has
                called `torch.cuda.set_device`, or a launcher such as torchrun has set LOCAL_RANK); "cpu"; or "auto":
                as "cuda" where there is a GPU, else the CPU. On a GPU, every job gets its own CUDA stream, with the
                priority of its level, as its current stream. Its jobs use no other GPU.
            {options}

        Raises:
            ValueError, TypeError: for an invalid argument, before any work starts.
            RuntimeError: if called inside a job.
        """
        options = with_present_names(RuntimeOptions, options)
        check(RuntimeOptions, options, "Runtime")
        environment.name_user()
        # Otherwise the first optimizer imports it inside a job, for 1 to 2 s.
        import_large("torch._dynamo")
        interpreter_lock.warn_if_on()
        _C.keep_cuda_stand_in()
        devices.start(device)
        self._handle = _C.Runtime(device, fill(_C.RuntimeOptions(), options))
        self._given = options.copy()
        self._options = with_defaults(RuntimeOptions, options)
        self._effects = Effects(options)
        self._folder = folder_of(options)
        self._jobs: dict[str, Job] = {}
        self._has_bound = False
        self._submitting = threading.RLock()
        """Guards the two fields above: a job that runs may submit others before its own `submit` returns."""
        routing.install()
        self._closer = Closer(self._handle, self._options["ranks"], self._folder, self._options["stuck_after"])
        weakref.finalize(self, self._closer.drop).atexit = False  # type: ignore[misc]  # a property

    @property
    def device(self) -> str:
        return self._handle.device

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(self._jobs.values())

    @property
    def results(self) -> Results:
        """What every job has done so far."""
        return Results([job.result for job in self.jobs])

    @documented(JobOptions)
    def submit(self, function: Callable[[Job], Any], **options: Unpack[JobOptions]) -> Job:
        """Adds a job that calls `function(job)` in its own thread.

        The job is pending until `start()` or `wait()`; in a started runtime, its `start` condition applies at once.

        Args:
            {options}

        Raises:
            ValueError, TypeError: for an invalid option; the message names the job, the option and the value.
        """
        return self._submit(function, options, None)

    def _submit(
        self,
        function: Callable[[Job], Any],
        options: JobOptions,
        environ: dict[str, str] | None,
        folder: str = "",
        has_own_ranks: bool = False,
    ) -> Job:
        """With `environ`, the job has that environment, which describes its ranks if it `has_own_ranks`: a host of a
        cluster runs ranks of different jobs. Its checkpoints go to `folder`, inside the folder of all checkpoints."""
        if not callable(function):
            raise TypeError(f"function must be a callable that takes a Job, got {function!r}")
        name = options.get("name")
        if name is None:
            name = getattr(function, "__name__", "job")
        check(JobOptions, options, "submit", job=name)
        if options.get("period") is not None:
            options.setdefault("priority", "primary")
        predecessors = _predecessors(name, options.get("after"))
        options["after"] = list(predecessors)
        if options.get("retries") and (has_own_ranks or (self._options["ranks"] and this_rank().count > 1)):
            raise ValueError(f"job '{name}': retries must be 0 with several ranks: their launcher restarts them")
        job = Job(predecessors.values())
        attempts = Attempts(
            job, name, function, options, self._handle, self._options, self._closer, self._effects, self._folder
        )
        with self._submitting:
            if self._has_bound:
                job._bind_predecessors(self._jobs)
            attempts.begin(environ, folder, has_own_ranks)
            self._jobs.pop(name, None)  # an ended one that had its name
            self._jobs[name] = job
        return job

    def start(self) -> None:
        """Checks every job's `start` condition, then starts the jobs. Until the runtime is closed, SIGTERM ends the
        program as `sys.exit(143)` does, unless the program handles it.

        Raises:
            ValueError: for a condition that names an unknown job or its own job, or that closes a cycle.
            RuntimeError: if a thread cannot be created. Jobs without a thread stay pending; call `start` again. Also if
                torchrun started this process and its other ranks do not start the same jobs within 60 s.
        """
        self._closer.open()
        self._closer.join_ranks()
        with self._submitting:
            for job in self.jobs if not self._has_bound else ():
                job._bind_predecessors(self._jobs)
            self._handle.start()
            self._has_bound = True

    def wait(self, timeout: float | None = None, *, check: bool = True) -> Results:
        """Starts the jobs if needed and waits until all have ended. Ctrl-C cancels them and is raised again.

        Raises:
            JobFailed: if a job failed, after all have ended, unless `check` is False.
            TimeoutError: after `timeout` seconds; the jobs continue.
            RuntimeError: if called inside one of its jobs, which would wait for itself.
        """
        self._refuse_inside("wait")
        self.start()
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        try:
            while not self._handle.wait(min(signals.CHECK_S, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    running = [job.name for job in self.jobs if job.state not in ENDED]
                    raise TimeoutError(f"jobs have not ended after {timeout} s: {', '.join(running)}")
                self.check_ranks()
        except (KeyboardInterrupt, SystemExit):
            self.close()
            raise
        results = self.results
        if any(result.state == "cancelled" for result in results.values()):
            self.check_ranks()  # that was why
        if check:
            _raise_failures(results)
        return results

    def check_ranks(self) -> None:
        """Raises RuntimeError if another rank has died; called by `wait`. Closes the runtime."""
        ranks = self._closer.ranks
        if ranks is not None and ranks.failure is not None:
            self.close()
            raise RuntimeError(ranks.failure)

    def cancel(self) -> None:
        """Cancels every job; see Job.cancel."""
        self._closer.cancel()

    def close(self) -> None:
        """Cancels the jobs that have not ended and waits for them; a job that does not stop is left behind. Results
        and timeline stay readable.

        Ctrl-C during the wait is raised at its end. A second Ctrl-C leaves behind the jobs that have not stopped.

        Raises:
            RuntimeError: if called inside one of its jobs, which would wait for itself.
        """
        self._refuse_inside("close")
        with signals.deferred() as stops:
            self._closer.close(stops)

    def _refuse_inside(self, what: str) -> None:
        job = current.job()
        if job is not None and job in self._closer.jobs:
            raise RuntimeError(f"job '{job.name}': {what}() would wait for this job itself; call it outside the jobs")

    def write_timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes the timeline as a Chrome trace, for https://ui.perfetto.dev. Raises OSError on failure."""
        try:
            with replacing(path) as file:
                self._handle.write_timeline(file.name)
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OSError(f"cannot write the timeline to '{os.fspath(path)}': {reason}") from None

    def write_report(self, path: str | os.PathLike[str]) -> None:
        """Writes a page of HTML about the jobs: what sharing gained and cost, where the time and the memory went, and
        what was decided. The file needs no other and loads nothing. Raises OSError on failure."""
        from torchshare.report import page
        from torchshare.runtime import run_report

        content, figures = run_report.document(
            [job._context.handle for job in self.jobs],
            self.results,
            self.events(),
            self.bound_report(),
            self.gap_report(),
            run_report.environment(self.device, self._given),
            self._handle.dropped_events,
        )
        page.write(path, "run.html", content, figures)

    def metrics(self) -> str:
        """Steps, times, memory and state of every job in Prometheus' text format."""
        from torchshare.runtime import metrics

        return metrics.text(self._snapshot)

    def serve_metrics(self, port: int) -> contextlib.AbstractContextManager[str]:
        """Serves `metrics()` over HTTP to this machine until the context is left; its value is the address. Port 0: any
        that is free. Raises OSError if the port cannot be had."""
        from torchshare.runtime import metrics

        return metrics.served(self._snapshot, port)

    def _snapshot(self) -> Snapshot:
        from torchshare.runtime.metrics import Snapshot

        handles = {job.name: job._context.handle for job in self.jobs}
        held = {name: handle.memory_held for name, handle in handles.items()}
        limit = {name: handle.memory_limit for name, handle in handles.items()}
        servings = {job.name: job._context.serving for job in self.jobs}
        requests = {name: serving.times for name, serving in servings.items() if serving is not None}
        return Snapshot(self.results, self.gap_report(), held, limit, requests)

    def bound_report(self) -> list[BoundReport]:
        """How `max_slowdown` was kept: one report per job that lower jobs ran beside. A report prints as one line. The
        first of several ranks keeps the bound for all; the others have no report."""
        max_slowdown = self._options["max_slowdown"]
        if max_slowdown is None:
            return []
        events = self.events()
        jobs = [job._context for job in self.jobs]
        reports = (report(job, jobs, events, max_slowdown) for job in jobs)
        return [found for found in reports if found is not None]

    def gap_report(self) -> list[GapReport]:
        """With policy="best_fit", how the gaps of each job that outranks another were filled. Prints as one line."""
        return gap_reports([job._context for job in self.jobs])

    def sharing_report(self) -> SharingReport:
        """What sharing gained and what it cost, from the steps of each job alone and beside the others. Prints as
        lines."""
        from torchshare.runtime.sharing import sharing_report

        return sharing_report([job._context.handle for job in self.jobs], self.results, self.events())

    def events(self) -> list[Event]:
        """The timeline: (kind, job, begin in ns, end in ns, number, detail), in order of recording. The number is
        that of the step or sub-batch, the bytes of a "memory" event, or the ns that a request was queued."""
        return self._handle.events()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Waits for the jobs, as an executor does; on an exception, cancels them instead."""
        try:
            if error is None and any(job.state not in ENDED for job in self.jobs):
                self.wait()
        finally:
            self.close()


def _predecessors(name: str, after: str | Sequence[str] | None) -> dict[str, str]:
    """The names of the jobs that the job waits for, by what the option says of each."""
    try:
        return {text: _core.Predecessor(text).name for text in ([after] if isinstance(after, str) else after or ())}
    except ValueError as error:
        raise ValueError(f"job '{name}': {error}") from None


def _raise_failures(results: Results) -> None:
    failed = [result for result in results.values() if result.state == "failed"]
    if failed:
        texts = [f"job '{r.name}' failed after {r.steps} steps: {described(r.exception)}" for r in failed]
        raise JobFailed("; ".join(texts), results) from failed[0].exception
