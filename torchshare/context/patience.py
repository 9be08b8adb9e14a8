"""How long the end of jobs is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchshare.context.job_context import JobContext


class Patience:
    """Time to wait for jobs, without that in which the waiting thread or a job's had no core."""

    def __init__(self, jobs: Callable[[], Iterable[JobContext]], seconds: float, look_s: float) -> None:
        """`look_s`: how long the caller waits between two calls of `spend`, if its thread has a core."""
        self._jobs = jobs
        self._left_s = seconds
        self._look_s = look_s
        self._waited_s = self._core_waits()

    def spend(self) -> bool:
        """Counts a look. Returns whether to go on."""
        before, self._waited_s = self._waited_s, self._core_waits()
        without_core = max((after - before.get(job, 0.0) for job, after in self._waited_s.items()), default=0.0)
        self._left_s -= max(0.0, self._look_s - without_core)
        return self._left_s > 0

    def _core_waits(self) -> dict[JobContext, float]:
        return {job: job.handle.stats().core_wait_s for job in self._jobs()}
