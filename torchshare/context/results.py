from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchshare.context.durations import duration_text
from torchshare.context.names import escaped

if TYPE_CHECKING:
    from torchshare._core import TimeSpread

HOW_ENDED = {"finished": "has finished", "failed": "has failed", "cancelled": "was cancelled"}
ENDED = tuple(HOW_ENDED)


@dataclass(frozen=True)
class Times:
    """A distribution of times, in seconds; quantiles within 2.2 %, rounded up. 0 where nothing was measured."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, spread: TimeSpread) -> Times:
        return cls(spread.mean, *map(spread.quantile, (0.5, 0.95, 0.99)))

    def __str__(self) -> str:
        return " / ".join(f"{1e3 * time:.2f}" for time in (self.p50, self.p95, self.p99))


@dataclass(frozen=True)
class Requests:
    """The requests to a job. A request is no step."""

    answered: int
    failed: int
    """Without an answer: the job gave an error instead, or ended."""
    latency: Times
    """From the arrival of a request to its answer."""
    service: Times
    """From the time that the job took it, or the batch that it is part of, to its answer."""
    queued: Times
    """From its arrival to the time that the job took it."""
    slo: str | None = None
    """What the job has promised about latencies."""
    late: int = 0
    """Answered later than that, or given up by their clients later than that."""
    given_up: int = 0
    """Cancelled by their clients before the job took them."""

    @property
    def late_share(self) -> float:
        """Share of late requests in those that were answered or given up."""
        return self.late / max(self.answered + self.given_up, 1)

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        failed += f", {self.given_up} given up" if self.given_up else ""
        kept = f"; {self.slo}: {self.late} late ({self.late_share:.2%})" if self.slo else ""
        return (
            f"{self.answered} requests answered{failed}{kept}; p50 / p95 / p99 in ms: latency {self.latency}, "
            f"service {self.service}, queued {self.queued}"
        )


@dataclass(frozen=True)
class Periods:
    """The units of a periodic job. Times in seconds."""

    met: int
    missed: int
    """Ended after their deadlines."""
    skipped: int
    """Not begun, because their deadlines had passed."""
    response: Times
    """From the release of a unit to its end."""
    slack: Times
    """From the end of a unit to its deadline, for those that were met."""
    worst_lateness_s: float
    misses: tuple[str, ...] = field(repr=False)
    """Why the last 20 units that were missed ended too late."""

    def __str__(self) -> str:
        late = f", the worst by {1e3 * self.worst_lateness_s:.2f} ms" if self.missed else ""
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        last = f"; the last one was {self.misses[-1]}" if self.misses else ""
        return (
            f"{self.met} deadlines met, {self.missed} missed{late}{skipped}; p50 / p95 / p99 in ms: "
            f"response {self.response}, slack {self.slack}{last}"
        )


@dataclass(frozen=True)
class Result:
    """The outcome of a job, or its progress so far. Times in seconds."""

    name: str
    priority: str
    state: str
    value: Any = field(repr=False)
    """The return value of its function."""
    exception: BaseException | None
    """The exception that its function raised, with the traceback. For a job that was not started because of a
    predecessor, a RuntimeError that names it."""
    steps: int
    """Steps of the whole training, with `earlier_steps`. All other counts and times are of this run."""
    earlier_steps: int
    """Done in earlier runs, before the checkpoint that the job goes on from."""
    sub_batches: int
    """Sub-batches of its steps."""
    ops: int
    ran_s: float
    """From its start to its end, or until now."""
    waited_s: float
    """Part of `ran_s` spent at the gate, suspended, asleep, in checkpoints, or waiting for ranks or the device."""
    input_s: float
    """Part of `ran_s` spent waiting for the loader."""
    cpu_s: float
    """Processor time of its thread; 0 if unknown."""
    core_wait_s: float
    """Part of `ran_s` in which its thread was ready to run, but other threads had the cores; 0 if unknown."""
    memory_peak: int
    """Peak bytes of its tensors; 0 if they were not metered."""
    memory_cached: int
    """Peak bytes of freed blocks that were cached for it; they are no part of `memory_peak`."""
    metrics: dict[str, float]
    requests: Requests | None = None
    """What the requests took that it answered; None unless it has called `Job.requests`."""
    periods: Periods | None = None
    """How the units of a periodic job kept their deadlines; None unless it has called `Job.periods`."""
    attempts: int = 1
    """How often it was started, with `retries`. The other counts and times are of the last attempt."""

    lateness_s: float | None = None
    """From the job's deadline to its end, or until now: negative before the deadline. None without a deadline, and for
    a job that has ended before it began."""

    @property
    def run_steps(self) -> int:
        """Steps of this run."""
        return self.steps - self.earlier_steps

    @property
    def deadline_kept(self) -> str | None:
        """How the job keeps its deadline, in words; None where `lateness_s` is."""
        if self.lateness_s is None:
            return None
        how = self.state if self.state in ENDED else "now"
        return (
            f"{how} {duration_text(abs(self.lateness_s))} {'after' if self.lateness_s > 0 else 'before'} its deadline"
        )

    @property
    def steps_per_s(self) -> float | None:
        """Steps per second of this run; None before the job has begun."""
        return self.run_steps / self.ran_s if self.ran_s > 0 else None


class Results(Mapping[str, Result]):
    """The results of a runtime's jobs by name, in order of submission. Prints as a table."""

    def __init__(self, results: list[Result]) -> None:
        self._results = {result.name: result for result in results}

    def __getitem__(self, name: str) -> Result:
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __str__(self) -> str:
        rows = [("job", "priority", "state", "steps", "sub-batches", "ops", "ran s", "waited s", "input s", "steps/s")]
        for r in self.values():
            rows.append(
                (
                    escaped(r.name),
                    r.priority,
                    r.state,
                    str(r.steps),
                    str(r.sub_batches),
                    str(r.ops),
                    f"{r.ran_s:.2f}",
                    f"{r.waited_s:.2f}",
                    f"{r.input_s:.2f}",
                    "-" if r.steps_per_s is None else f"{r.steps_per_s:.1f}",
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        texts = 3  # leading columns of text; numbers are right-aligned
        table = [
            "  ".join(
                cell.ljust(width) if i < texts else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        requests = [f"job '{escaped(r.name)}': {r.requests}" for r in self.values() if r.requests is not None]
        requests += [f"job '{escaped(r.name)}': {r.periods}" for r in self.values() if r.periods is not None]
        requests += [f"job '{escaped(r.name)}': {r.deadline_kept}" for r in self.values() if r.deadline_kept]
        unstarted = [escaped(str(r.exception)) for r in self.values() if r.state == "cancelled" and r.exception]
        return "\n".join(table + requests + unstarted + [_core_wait(r) for r in self.values() if _starved(r)])


def _starved(result: Result) -> bool:
    return result.core_wait_s > max(1.0, 0.25 * result.ran_s)


def _core_wait(result: Result) -> str:
    return (
        f"job '{escaped(result.name)}' was ready to run for {result.core_wait_s:.1f} of {result.ran_s:.1f} s while "
        "other threads of the machine had the cores (see device_priority)"
    )
