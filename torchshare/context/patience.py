"""How long the end of jobs is waited for."""

from __future__ import annotations

from collections.abc import Iterable

from torchshare.context.job_context import JobContext

_LONGEST = 20


class Patience:
    """How long to wait for jobs. Time in which the waiting thread or a job's thread had no core does not count, as far
    as the kernel has told: it counts a wait when the thread gets the core. At most `_LONGEST` times as long."""

    def __init__(self, jobs: Iterable[JobContext], seconds: float, look_s: float) -> None:
        """`jobs` may change meanwhile. `look_s`: how long the caller waits between two calls of `spend`, if its thread
        has a core."""
        self._jobs = jobs
        self._left_s = seconds
        self._looks_left = _LONGEST * seconds / look_s
        self._look_s = look_s
        self._waited_s = self._core_waits()

    def spend(self) -> bool:
        """Called after each wait of `look_s`. Returns whether to go on."""
        before, self._waited_s = self._waited_s, self._core_waits()
        without_core = max((after - before.get(job, 0.0) for job, after in self._waited_s.items()), default=0.0)
        self._left_s -= max(0.0, self._look_s - without_core)
        self._looks_left -= 1
        return self._left_s > 0 and self._looks_left > 0

    def _core_waits(self) -> dict[JobContext, float]:
        return {job: job.handle.stats().core_wait_s for job in list(self._jobs)}
