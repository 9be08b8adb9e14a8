"""What the gaps between a job's ops were good for."""

from __future__ import annotations

from dataclasses import dataclass

from torchshare import _core
from torchshare.context.job_context import JobContext


@dataclass(frozen=True)
class GapReport:
    """Of one job that outranks another, under policy="best_fit". Times are sums, in seconds."""

    job: str
    ran_s: float
    capacity_s: float
    """Of its gaps, as expected: the sum of FIKIT's SG over its ops."""
    filled_s: float
    """What ops of lower jobs took, from the gate on."""
    ops: int
    unknown_ops: int
    """Whose duration or gap was still to be measured."""
    gaps_opened: int
    """Long enough to be filled, and forecast."""
    gaps_filled: int
    """In which a lower job was let in, by a forecast or for the job was quiet or waited for input."""
    returns_into_filler: int
    """It came back while a lower job was still inside an op: a misprediction."""
    cost_s: float
    """What its own ops took above their mean then, until the lower job was out."""

    def __str__(self) -> str:
        ran = max(self.ran_s, 1e-9)
        cost = self.cost_s / ran
        filled = self.filled_s / self.capacity_s if self.capacity_s > 0 else 0.0
        each = 1e6 * self.cost_s / self.returns_into_filler if self.returns_into_filler else 0.0
        return (
            f"{self.job}: gaps are {self.capacity_s / ran:.0%} of its time, lower jobs' ops took {filled:.0%} of "
            f"that; they were let into {self.gaps_filled} gaps, {self.gaps_opened} were forecast; it returned into an "
            f"op of theirs {self.returns_into_filler} times, which cost {each:.0f} us each, {cost:.2%} of its time; "
            f"{self.unknown_ops} of {self.ops} ops were still to be measured"
        )


def gap_reports(jobs: list[JobContext]) -> list[GapReport]:
    """Of the jobs that outrank another, where there is a forecast."""
    reports = []
    for job in jobs:
        lower = [other for other in jobs if _core.outranks(job.handle.priority, other.handle.priority)]
        stats = job.handle.gaps()
        if stats is None or not lower:
            continue
        reports.append(
            GapReport(
                job=job.name,
                ran_s=job.handle.stats().ran_s,
                capacity_s=stats.capacity_s,
                filled_s=sum(other.filled_s for other in (job.handle.gaps() for job in lower) if other is not None),
                ops=stats.ops,
                unknown_ops=stats.unknown_ops,
                gaps_opened=stats.gaps_opened,
                gaps_filled=stats.gaps_filled,
                returns_into_filler=stats.returns_into_filler,
                cost_s=stats.cost_s,
            )
        )
    return reports
