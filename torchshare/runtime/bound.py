"""How a bound on the primary's slowdown was kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchshare import _C, _core
from torchshare.context.job_context import JobContext


@dataclass(frozen=True)
class BoundReport:
    """Of one job that lower jobs ran beside. Times in seconds; a step is from the end of the one before."""

    job: str
    max_slowdown: float
    windows: int
    """Seconds in which lower jobs ran beside it."""
    windows_inside: int
    """Those in which its mean step was within the bound."""
    step_alone_s: float
    """As its own steps tell, with the others held; see SlowdownBound in csrc/sharing."""
    p50_s: float
    p95_s: float
    p99_s: float
    loss: float
    """Share of the time in which the others may run that it loses to them."""
    share: float
    """Of the time in which the others may run, as last set."""
    others: dict[str, int]
    """Steps of the lower jobs between its first step and its last."""

    def __str__(self) -> str:
        inside = f"{self.windows_inside / self.windows:.0%} of {self.windows} s"
        steps = ", ".join(f"{1e3 * time:.2f}" for time in (self.p50_s, self.p95_s, self.p99_s))
        others = ", ".join(f"{name} {count} steps" for name, count in self.others.items()) or "nobody"
        return (
            f"{self.job}: slowdown within {self.max_slowdown:.3g} in {inside}; a step takes "
            f"{1e3 * self.step_alone_s:.2f} ms alone, {steps} ms here (p50, p95, p99); others may run "
            f"{self.share:.0%} of the time: {others}"
        )


def report(job: JobContext, jobs: list[JobContext], events: list[_C.Event], max_slowdown: float) -> BoundReport | None:
    """Nothing for a job that no lower one ran beside for a second."""
    stats = job.handle.bound()
    ends = np.array([end for kind, name, _, end, _, _ in events if kind == "step" and name == job.name]) / 1e9
    if stats is None or stats.windows == 0 or len(ends) < 2:
        return None
    p50, p95, p99 = np.quantile(np.diff(ends), [0.5, 0.95, 0.99])
    others = {other.name: 0 for other in jobs if _core.outranks(job.handle.priority, other.handle.priority)}
    for kind, name, _, end, _, _ in events:
        if kind == "step" and name in others and ends[0] <= end / 1e9 <= ends[-1]:
            others[name] += 1
    return BoundReport(
        job=job.name,
        max_slowdown=max_slowdown,
        windows=stats.windows,
        windows_inside=stats.windows_inside,
        step_alone_s=stats.alone,
        p50_s=float(p50),
        p95_s=float(p95),
        p99_s=float(p99),
        loss=stats.loss,
        share=stats.share,
        others=others,
    )
