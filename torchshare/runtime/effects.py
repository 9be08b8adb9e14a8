"""Warns of options that have no effect: one line each, that names the job and the option."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torchshare import _core
from torchshare.context.job_context import JobContext
from torchshare.context.results import ENDED
from torchshare.runtime.declared import with_defaults
from torchshare.runtime.options import JobOptions, RuntimeOptions

log = logging.getLogger("torchshare")

_NO_STEP = "did no step, of an optimizer or with job.batches"


@dataclass(frozen=True, eq=False)
class _Known:
    job: JobContext
    start: str
    rule: _core.StartRule
    has_profile: bool


class Effects:
    """Knows the options of a runtime and of its jobs."""

    def __init__(self, options: RuntimeOptions) -> None:
        settings = with_defaults(RuntimeOptions, options)
        self._keep = settings["keep"]
        self._policy = settings["policy"]
        self._max_slowdown = settings["max_slowdown"]
        self._jobs: list[_Known] = []
        for name in ("grace", "max_wait"):
            if self._policy == "priority" and options.get(name) is not None:
                log.warning("%s has no effect: policy 'priority' lets no job wait", name)

    def expect(self, job: JobContext, options: JobOptions) -> None:
        """Called when a job has been submitted. Of the jobs that have ended, the last ones are remembered."""
        ended = [known for known in self._jobs if known.job.handle.state in ENDED]
        forgotten = {*ended[: max(0, len(ended) - self._keep)]}
        if forgotten:
            self._jobs = [known for known in self._jobs if known not in forgotten]
        start = str(options.get("start", "now"))
        self._jobs.append(_Known(job, start, _core.StartRule(start), options.get("profile") is not None))

    def begin(self, job: JobContext, own: JobOptions) -> Callable[[], None]:
        """Called when a job's code begins. Returns what to call at its end: only then is it known what it did
        without."""
        ended = {known for known in self._jobs if known.job.handle.state in ENDED}
        return lambda: self._check(job, own, [known for known in self._jobs if known not in ended])

    def _check(self, job: JobContext, own: JobOptions, present: list[_Known]) -> None:
        """`present`: the jobs that had not ended when this one began."""
        of_steps = self._of_steps(job, present)
        found = (self._of_batches(job, own), self._of_requests(job), self._of_plans(job, own), of_steps)
        for name, option, reason in itertools.chain(*found):
            log.warning("job '%s': %s had no effect: %s", name, option, reason)

    def _of_batches(self, job: JobContext, own: JobOptions) -> Iterator[tuple[str, str, str]]:
        for name, what in (("sub_batch", "split batches"), ("epochs", "count passes")):
            if own.get(name) is not None and not job.uses_batches:
                yield job.name, f"{name}={own.get(name)}", f"only job.batches and torchshare.batches {what}"

    def _of_requests(self, job: JobContext) -> Iterator[tuple[str, str, str]]:
        if job.slo is not None and job.serving is None:
            yield job.name, f"slo='{job.slo}'", "it has called neither job.requests nor job.serve"

    def _of_plans(self, job: JobContext, own: JobOptions) -> Iterator[tuple[str, str, str]]:
        plans = any(known.rule.is_planned for known in self._jobs)
        for name in ("steps", "epochs"):
            told = name == "epochs" and not job.uses_batches
            if own.get(name) is not None and not plans and not told:
                yield job.name, f"{name}={own.get(name)}", "no job has start='auto'"
        uses_profiles = plans or self._max_slowdown is not None or self._policy in ("best_fit", "resource")
        if own.get("profile") is not None and not uses_profiles:
            reason = "only start='auto', max_slowdown and the policies 'best_fit' and 'resource' use it"
            yield job.name, "profile", reason

    def _of_steps(self, job: JobContext, present: list[_Known]) -> Iterator[tuple[str, str, str]]:
        """Options, of any job, for which this job's steps count."""
        stats = job.handle.stats()
        steps, all_steps = stats.steps, stats.earlier_steps + stats.steps
        bound = self._max_slowdown
        is_measured = steps > 0 or (job.serving is not None and job.serving.times.latency.count > 0)
        if bound is not None and not is_measured and any(_outranks(job, other.job) for other in present):
            yield job.name, f"max_slowdown={bound}", f"the job {_NO_STEP}"
        for other in present:
            option = f"start='{other.start}'"
            if other.rule.is_planned and not is_measured and not other.has_profile:
                yield other.job.name, option, f"job '{job.name}' {_NO_STEP}"
            if not other.rule.enough(all_steps) and self._counted_by(other.job) is job:
                did = f"did {all_steps} steps" if all_steps else _NO_STEP
                yield other.job.name, option, f"job '{job.name}' {did}"

    def _counted_by(self, job: JobContext) -> JobContext | None:
        """The job whose steps a start rule counts: of the others, the first of the highest priority."""
        others = [other.job for other in self._jobs if other.job is not job]
        return next((each for each in others if not any(_outranks(other, each) for other in others)), None)


def _outranks(job: JobContext, other: JobContext) -> bool:
    return _core.outranks(job.handle.priority, other.handle.priority)
