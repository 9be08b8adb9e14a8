"""Reports how well a bound on the primary's slowdown was kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchshare import _core
from torchshare.context.job_context import JobContext
from torchshare.runtime.job_timelines import Event


@dataclass(frozen=True)
class BoundReport:
    """The bound on one job's slowdown while lower jobs ran beside it. A step lasts from the end of the previous one, a
    request from when the job took it."""

    job: str
    max_slowdown: float
    unit: str
    """What must not take longer: "step", or "request" for a job that answers requests."""
    windows: int
    """Windows of 1 s in which lower jobs ran beside it."""
    windows_inside: int
    """Windows in which the mean time of its steps or requests was within the bound."""
    step_alone_s: float
    """Time of a step or request alone, estimated from those while the others were held; see SlowdownBound."""
    p50_s: float
    p95_s: float
    p99_s: float
    loss: float
    """Fraction of the time in which the others may run that the job loses to them."""
    share: float
    """Fraction of the time in which the others may run, as last set."""
    others: dict[str, int]
    """Steps that each lower job did between the end of the job's first and that of its last step or request."""

    def __str__(self) -> str:
        inside = f"{self.windows_inside / self.windows:.0%} of {self.windows} s"
        steps = ", ".join(f"{1e3 * time:.2f}" for time in (self.p50_s, self.p95_s, self.p99_s))
        others = ", ".join(f"{name} {count} steps" for name, count in self.others.items()) or "none"
        return (
            f"{self.job}: slowdown within {self.max_slowdown:.3g} in {inside}; a {self.unit} takes "
            f"{1e3 * self.step_alone_s:.2f} ms alone, {steps} ms shared (p50, p95, p99); others may run "
            f"{self.share:.0%} of the time: {others}"
        )


def report(job: JobContext, jobs: list[JobContext], events: list[Event], max_slowdown: float) -> BoundReport | None:
    """None unless lower jobs ran beside the job for at least one window."""
    stats = job.handle.bound()
    if stats is None or stats.windows == 0:
        return None
    began, _ = job.handle.span_ns
    events = [each for each in events if each[3] >= began]  # not of ended jobs that had the names
    own = np.array([each[2:5] for each in events if each[0] == stats.unit and each[1] == job.name]).reshape(-1, 3) / 1e9
    begins, ends, queued = own.T
    times = np.diff(ends) if stats.unit == "step" else ends - begins - queued
    if len(times) == 0:
        return None
    p50, p95, p99 = np.quantile(times, [0.5, 0.95, 0.99])
    others = {other.name: 0 for other in jobs if _core.outranks(job.handle.priority, other.handle.priority)}
    for kind, name, _, end, _, _ in events:
        if kind == "step" and name in others and ends.min() <= end / 1e9 <= ends.max():
            others[name] += 1
    return BoundReport(
        job=job.name,
        max_slowdown=max_slowdown,
        unit=stats.unit,
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
