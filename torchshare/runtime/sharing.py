"""What sharing gained and cost: for the report, for what `torchshare run` prints and for its JSON alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchshare import _C
from torchshare.context.names import escaped
from torchshare.context.results import Result
from torchshare.report.numbers import Numbers, seconds
from torchshare.runtime.job_timelines import (
    Lone,
    Steps,
    Timeline,
    overlap,
    running_of,
    steps_of,
    timelines,
    union,
)

Row = Mapping[str, Any]
"""Of a job: its name, priority, state and steps, and `step_times`."""

_MAX_NAMED = 10  # jobs
_WEIGHTS = (
    "Each job has the weights that it would have alone with the same sub-batches, threads and seed: by design, not "
    "checked in this run."
)


@dataclass(frozen=True)
class SharingReport:
    """What sharing gained and what it cost. Prints as lines, none of jobs that did not share."""

    jobs: Mapping[str, Mapping[str, Any]]
    """By name: `alone_s`, `alone_quartiles_s` and `alone_from`, a step's mean time alone, how it varies, and where it
    is from; `shared_s`, its mean time while another job ran; and `slowdown`. None of what is not known."""
    verdict: list[str]
    """Sentences."""
    answer: list[str]
    """Those of them about the gain and the cost; none if no two jobs ran at the same time."""

    def __str__(self) -> str:
        known = {name: row["alone_from"] for name, row in self.jobs.items() if row["alone_from"]}
        alone = [f"'{escaped(name)}': the time of a step alone is {source}." for name, source in known.items()]
        return "\n".join(f"sharing: {escaped(line)}" for line in [*self.answer, *alone] if self.answer)


def sharing_report(jobs: Sequence[_C.Job], results: Mapping[str, Result], events: Sequence[_C.Event]) -> SharingReport:
    """See Runtime.sharing_report."""
    found, _ = timelines(jobs, events)
    steps = steps_of(list(found.values()))
    times = {job.name: step_times(job, each) for job, each in zip(jobs, steps, strict=True)}
    rows = [{**_outcome(results[name]), **row} for name, row in times.items()]
    lines = list(found.values())
    return SharingReport(times, verdict(rows, lines, steps), answer(rows, lines, steps))


def _outcome(result: Result) -> dict[str, Any]:
    return {"name": result.name, "priority": result.priority, "state": result.state, "steps": result.steps}


def step_times(job: _C.Job, steps: Steps) -> dict[str, Any]:
    """The times of a job's steps alone and shared; see SharingReport.jobs."""
    lone = steps.alone
    alone, source = _alone(job, lone)
    shared = steps.shared_s
    return {
        "alone_s": alone,
        "alone_from": source,
        "alone_quartiles_s": None if lone is None or alone != lone.mean else list(lone.quartiles),
        "shared_s": shared,
        "slowdown": shared / alone - 1 if shared and alone else None,
    }


def _alone(job: _C.Job, lone: Lone | None) -> tuple[float | None, str | None]:
    """The time of a step alone, and where it is from."""
    bound = job.bound()
    if job.profiled_step_s is not None:
        return job.profiled_step_s, "from its profile"
    if lone is not None:
        q25, q75 = (seconds(each) for each in lone.quartiles)
        return lone.mean, (
            f"the mean of {lone.count} steps from step {lone.first} to {lone.last}, alone in this run; half of them "
            f"took {q25} to {q75}"
        )
    if bound is not None and bound.windows > 0:
        return bound.alone, "estimated from its steps while the others were held"
    return None, None


def verdict(rows: Sequence[Row], found: Sequence[Timeline], steps: Sequence[Steps]) -> list[str]:
    """What sharing gained and what it cost, and who did not finish, as sentences."""
    said = {"failed": "failed", "cancelled": "was cancelled"}
    others = [row for row in rows if row["state"] != "finished"]
    ends = [
        f"'{row['name']}' {said.get(row['state'], 'is ' + row['state'])} after {row['steps']} steps."
        for row in others[:_MAX_NAMED]
    ]
    if len(others) > _MAX_NAMED:
        ends.append(f"{len(others) - _MAX_NAMED} more did not finish.")
    answered = answer(rows, found, steps)
    if not answered:
        return ["No two jobs ran at the same time: nothing was shared.", *ends]
    return [*answered, *ends, _WEIGHTS]


def answer(rows: Sequence[Row], found: Sequence[Timeline], steps: Sequence[Steps]) -> list[str]:
    """What sharing gained and what it cost; nothing if no two jobs ran at the same time."""
    spans = running_of(found)
    spans = spans[spans[:, 0].argsort()]
    if not (spans[1:, 0] < np.maximum.accumulate(spans[:, 1])[:-1]).any():
        return []
    cost = [
        f"A step of '{row['name']}' ({row['priority']}) took {1 + row['slowdown']:.2f} times as long while it shared "
        "as alone."
        for row in sorted(rows, key=lambda row: row["priority"] != "primary")
        if row["slowdown"] is not None
    ]
    return [_gain(rows, found, steps), *cost[:1]]


@dataclass(frozen=True)
class _Work:
    """What a job did in a part of the run: steps, and how long it ran besides, such as to evaluate. What is no step
    takes as long alone as here."""

    steps: int
    rest_s: float

    @staticmethod
    def of(timeline: Timeline, steps: Steps, begin: Numbers, end: Numbers) -> _Work:
        counted = (steps.ends > begin) & ~steps.paused
        in_steps = timeline.ran(np.maximum(steps.begins[counted], begin), steps.ends[counted])
        return _Work(int(counted.sum()), max(0.0, timeline.ran(begin, end) - in_steps))

    def alone_s(self, step_s: float) -> float:
        return self.steps * step_s + self.rest_s


def _gain(rows: Sequence[Row], found: Sequence[Timeline], steps: Sequence[Steps]) -> str:
    """From the first step to the last: imports that precede the first count for nothing. Of jobs whose oldest events
    were dropped, from the first step that is known of all."""
    known = [each for each in zip(rows, found, steps, strict=True) if len(each[1].steps) > 0]
    unknown = [row for row, *_ in known if row["alone_s"] is None]
    if len(unknown) > 1 or (unknown and len(known) == 1):
        more = ", ..." if len(unknown) > _MAX_NAMED else ""
        names = ", ".join(f"'{row['name']}'" for row in unknown[:_MAX_NAMED]) + more
        return (
            f"What sharing gained is not known: no step time alone of {names}; give a profile, or start one job when "
            "another has done some steps."
        )
    cut = [timeline.steps[0] for row, timeline, _ in known if row["steps"] > len(timeline.steps)]
    begin = np.array([max(cut) if cut else min((timeline.steps[0] for _, timeline, _ in known), default=0.0)])
    end = np.array([max((timeline.steps[-1] for _, timeline, _ in known), default=0.0)])
    together = float(overlap(begin, end, union(running_of(found))).sum())
    work = [_Work.of(timeline, each, begin, end) for _, timeline, each in known]
    one_by_one = sum(
        each.alone_s(row["alone_s"]) for each, (row, *_) in zip(work, known, strict=True) if row not in unknown
    )
    took = f"Together the jobs took {together:.3g} s from the first step to the last."
    if unknown:
        place = [row for row, *_ in known].index(unknown[0])
        return f"{took} {_gain_without(unknown[0], work[place], together - one_by_one)}"
    if together <= 0 or one_by_one <= 0:
        return "What sharing gained is not known: there were too few steps."
    ratio = one_by_one / together
    compared = f"{ratio:.2f} times as fast" if ratio >= 1 else f"slower, it took {1 / ratio:.2f} times as long"
    return (
        f"{took} One after the other they would take about {one_by_one:.3g} s, by the times of their steps alone: "
        f"sharing was {compared}."
    )


def _gain_without(row: Row, work: _Work, left_s: float) -> str:
    """What can be said if one job has no step time alone: `left_s` are of the time together, without what the others
    take alone."""
    name, shared = f"'{row['name']}'", row["shared_s"]
    if work.rest_s >= left_s:
        return f"Sharing was faster, however long a step of {name} takes alone."
    if work.steps == 0 or shared is None:
        return f"What sharing gained is not known: there were too few steps of {name}."
    enough = (left_s - work.rest_s) / work.steps
    if enough >= shared:
        return f"Sharing was slower, even if a step of {name} takes {seconds(shared)} alone, as it did shared."
    return (
        f"Sharing was faster if a step of {name} takes more than {seconds(enough)} alone, which is not known; it took "
        f"{seconds(shared)} shared."
    )
