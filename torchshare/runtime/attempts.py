"""Submits a job to C++: once, and again each time that it fails while it may be retried."""

from __future__ import annotations

import contextvars
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchshare import _C
from torchshare.context.durations import duration_text, parse_duration
from torchshare.context.errors import BudgetExceeded, Cancelled, described
from torchshare.context.job_context import JobContext
from torchshare.context.rank import this_rank
from torchshare.context.sub_batch_rows import SubBatchRows
from torchshare.isolation import routing
from torchshare.isolation.interrupt import PROCESS_CODE
from torchshare.memory import spill
from torchshare.runtime.body import Failed, run_body
from torchshare.runtime.closing import Closer
from torchshare.runtime.declared import fill, with_defaults
from torchshare.runtime.effects import Effects
from torchshare.runtime.job import Job
from torchshare.runtime.options import JobOptions, RuntimeOptions

if TYPE_CHECKING:
    from torchshare.runtime.checkpointing import Folder

log = logging.getLogger("torchshare")

_LONGEST_WAIT_S = 60.0


class Attempts:
    """The attempts of one job. Each has a context and a job of C++ of its own, so that it starts like a new job; users
    keep one Job. Outlives the Runtime object."""

    def __init__(
        self,
        job: Job,
        name: str,
        function: Callable[[Job], Any],
        options: JobOptions,
        runtime: _C.Runtime,
        runtime_options: RuntimeOptions,
        closer: Closer,
        effects: Effects,
        folder: Folder | None,
    ) -> None:
        """`options` are checked, `runtime_options` complete."""
        self._job = job
        self._name = name
        self._function = function
        self._options = options
        self._settings = with_defaults(JobOptions, options)
        self._runtime = runtime
        self._runtime_options = runtime_options
        self._closer = closer
        self._effects = effects
        self._folder = folder
        self._variables = contextvars.copy_context()
        self._threads = torch.get_num_threads()

    def begin(self, environ: dict[str, str] | None, folder: str, has_own_ranks: bool) -> None:
        """Submits the job; see Runtime._submit for the arguments. Raises ValueError with the job's name."""
        self._submit(self._context(environ, folder, has_own_ranks), self._options, None)

    def _run(self, context: JobContext, handle: _C.Job, options: JobOptions) -> None:
        self._job._take_results()
        check_effects = self._effects.begin(context, options)
        try:
            run_body(self._job, context, handle, self._function, self._closer, check_effects, self._wait_before_next)
        except Failed as failed:
            if failed.wait_s is not None:
                self._try_next(failed.wait_s, failed.cause)
            raise

    def _try_next(self, wait_s: float, cause: BaseException) -> None:
        try:
            self._begin_next(wait_s)
        except Exception as error:
            log.error("job '%s' cannot start again: %s", self._name, described(error))
            self._job._exception = cause

    def _wait_before_next(self, error: BaseException) -> float | None:
        job = self._job
        retries = isinstance(error, self._settings["retry_on"]) and not job._context.handle.cancel_requested
        if not retries or job._attempts > self._settings["retries"]:
            return None
        return min(2.0 ** (job._attempts - 1), _LONGEST_WAIT_S)

    def _begin_next(self, wait_s: float) -> None:
        """Submits the job again. In its thread, when it has left the job. Raises if that is not possible, for example
        because the runtime is being closed."""
        job, former = self._job, self._job._context
        options: JobOptions = {**self._options, "start": wait_s, "after": []}
        context = self._context(None, "", False, again=True)
        context.handle = former.handle  # until there is another
        job._attempts += 1
        try:
            self._submit(context, options, former.handle)
        except BaseException:
            job._context, job._attempts = former, job._attempts - 1
            raise
        if former.handle.cancel_requested:  # meanwhile; see Job.cancel
            job.cancel()

    def _context(
        self, environ: dict[str, str] | None, folder: str, has_own_ranks: bool, again: bool = False
    ) -> JobContext:
        settings, of_runtime = self._settings, self._runtime_options
        context = JobContext(
            self._name,
            settings["seed"],
            settings["sub_batch"],
            settings["epochs"],
            self._closer.number,
            self._closer.watch_cancel,
            self._closer.tell_ranks,
            spill.park,
            on_cpu=self._runtime.device == "cpu",
            on_disagree=of_runtime["on_disagree"],
            resplit=settings["resplit"],
            slo=settings["slo"],
            shared_patches=of_runtime["shared_patches"],
            rows_at_once=SubBatchRows(settings["regrow_after"]),
        )
        if environ is not None:
            context.environ = {os.fsencode(key): os.fsencode(value) for key, value in environ.items()}
            if has_own_ranks:
                context.rank, context.has_own_ranks = this_rank(environ), True
                context.runtime = f"{context.rank.restarts}.of-job"  # the same on all its ranks
        if self._folder is not None:
            context.loop = self._folder.checkpoints_of(context, folder, again)
        return context

    def _submit(self, context: JobContext, options: JobOptions, replaces: _C.Job | None) -> None:
        function, variables = self._function, self._variables.copy()
        self._job._context = context
        routing.expect_job(context, getattr(function, "is_script", False))
        try:
            context.handle = self._runtime.submit(
                lambda handle: variables.run(self._run, context, handle, options),
                self._spec(options),
                getattr(function, "cancelled_type", Cancelled),
                BudgetExceeded,
                PROCESS_CODE,
                replaces,
            )
        except BaseException as error:
            routing.forget_job(context)
            if not isinstance(error, ValueError):
                raise
            text = str(error)
            raise ValueError(text if f"'{self._name}'" in text else f"job '{self._name}': {text}") from None
        self._effects.expect(context, options)
        self._closer.expect(context)

    def _spec(self, options: JobOptions) -> _C.JobSpec:
        spec = _C.JobSpec()
        spec.name = self._name
        spec.threads = self._threads
        fill(spec, {name: value for name, value in options.items() if name not in ("profile", "deadline")})
        if (deadline := options.get("deadline")) is not None:
            spec.deadline = parse_duration(deadline)
        profile = options.get("profile")
        if profile is not None:
            from torchshare.profiles.profile import as_profile

            known = as_profile(self._name, profile, self._function)
            spec.profile = known.profiled_job(options.get("sub_batch"), spec.priority, options.get("slo"))
            if self._runtime.device != "cpu" and spec.memory_budget is None:
                spec.memory_budget = known.memory_budget(options.get("sub_batch"))
            spec.ops = [] if known.ops is None else known.ops.op_profiles()
            if spec.period is not None and spec.unit_time is None and known.requests is not None:
                spec.unit_time = known.requests.times.unit_time_s
            self._check_deadline(spec, spec.profile.step)
        return spec

    def _check_deadline(self, spec: _C.JobSpec, step_s: float) -> None:
        """A job that may resume has fewer steps than it declares."""
        if spec.deadline is None or spec.period is not None or spec.steps is None or self._folder is not None:
            return
        if (alone := spec.steps * step_s) > spec.deadline:
            raise ValueError(
                f"deadline must be at least {duration_text(alone)}, which {spec.steps:.0f} steps take alone as its "
                f"profile says, got {duration_text(spec.deadline)}"
            )
