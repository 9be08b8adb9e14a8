"""Reports how the gaps between a job's ops were filled."""

from __future__ import annotations

from dataclasses import dataclass

from torchshare import _core
from torchshare.context.job_context import JobContext


@dataclass(frozen=True)
class GapReport:
    """The gaps of one job that outranks another, under policy="best_fit". Times are sums, in seconds."""

    job: str
    ran_s: float
    capacity_s: float
    """Expected length of its gaps: the sum of FIKIT's SG over its ops."""
    filled_s: float
    """Duration of the ops of lower jobs, from their admission."""
    ops: int
    unknown_ops: int
    """Ops whose duration or gap had not been measured yet."""
    gaps_opened: int
    """Gaps that were forecast and long enough to fill."""
    gaps_filled: int
    """Gaps into which a lower job was admitted: by a forecast, or because the job was quiet or waited for input."""
    returns_into_filler: int
    """Mispredictions: the job returned while a lower job was still inside an op."""
    cost_s: float
    """Time that its own ops then took above their mean, until the lower job had left."""

    def __str__(self) -> str:
        ran = max(self.ran_s, 1e-9)
        cost = self.cost_s / ran
        filled = self.filled_s / self.capacity_s if self.capacity_s > 0 else 0.0
        each = 1e6 * self.cost_s / self.returns_into_filler if self.returns_into_filler else 0.0
        return (
            f"{self.job}: gaps are {self.capacity_s / ran:.0%} of its time; lower jobs filled {filled:.0%} of that; "
            f"{self.gaps_filled} gaps were filled, {self.gaps_opened} were forecast; it returned "
            f"{self.returns_into_filler} times while a lower job was inside an op, at {each:.0f} us each, "
            f"{cost:.2%} of its time; {self.unknown_ops} of {self.ops} ops were not yet measured"
        )


def gap_reports(jobs: list[JobContext]) -> list[GapReport]:
    """One report per job that outranks another, if the policy forecasts gaps."""
    reports = []
    for job in jobs:
        stats = job.handle.gaps()
        if stats is None:
            continue
        lower = [other for other in jobs if _core.outranks(job.handle.priority, other.handle.priority)]
        if not lower:
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
