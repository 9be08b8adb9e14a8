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
    Event,
    Lone,
    Steps,
    Timeline,
    overlap,
    running_of,
    steps_of,
    timelines,
    union,
)
from torchshare.runtime.time_spent import stalled_s, time_spent

Row = Mapping[str, Any]
"""A job's name, priority, state and steps, `step_times`, and `stalled_s`."""

_MAX_NAMED = 10  # jobs
_EXACT = 0.95  # of two estimates: the larger is told
_WEIGHTS = (
    "Each job has the weights that it would have alone with the same sub-batches, threads and seed: by design, not "
    "checked in this run."
)


@dataclass(frozen=True)
class SharingReport:
    """What sharing gained and what it cost. Prints as lines, none of jobs that did not share."""

    jobs: Mapping[str, Mapping[str, Any]]
    """Each job's figures: `alone_s`, `alone_quartiles_s` and `alone_from`, a step's mean time alone, how it varies, and
    where it is from; `shared_s`, its mean time while another job ran; and `slowdown`. Unknown ones are left out."""
    verdict: list[str]
    """Sentences."""
    answer: list[str]
    """The sentences about the gain and the cost; empty if no two jobs ran at the same time."""

    def __str__(self) -> str:
        known = {name: row["alone_from"] for name, row in self.jobs.items() if row["alone_from"]}
        alone = [f"'{escaped(name)}': the time of a step alone is {source}." for name, source in known.items()]
        return "\n".join(f"sharing: {escaped(line)}" for line in [*self.answer, *alone] if self.answer)


def sharing_report(jobs: Sequence[_C.Job], results: Mapping[str, Result], events: Sequence[Event]) -> SharingReport:
    """See Runtime.sharing_report."""
    found, _ = timelines(jobs, events)
    steps = steps_of(list(found.values()))
    times = {job.name: step_times(job, each) for job, each in zip(jobs, steps, strict=True)}
    rows = [{**_outcome(results[name], found[name]), **row} for name, row in times.items()]
    lines = list(found.values())
    return SharingReport(times, verdict(rows, lines, steps), answer(rows, lines, steps))


def _outcome(result: Result, timeline: Timeline) -> dict[str, Any]:
    stalled = stalled_s(result, time_spent(result, timeline))
    fields = {name: getattr(result, name) for name in ("name", "priority", "state", "steps", "run_steps")}
    return {**fields, "stalled_s": stalled}


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
    cut = [timeline.steps[0] for row, timeline, _ in known if row["run_steps"] > len(timeline.steps)]
    begin = np.array([max(cut) if cut else min((timeline.steps[0] for _, timeline, _ in known), default=0.0)])
    end = np.array([max((timeline.steps[-1] for _, timeline, _ in known), default=0.0)])
    together = float(overlap(begin, end, union(running_of(found))).sum())
    times = [_time_alone(*each, begin, end) for each in known if each[0] not in unknown]
    least, most = (sum(bounds) for bounds in zip(*times, strict=True)) if times else (0.0, 0.0)
    if together <= 0 or most <= 0:
        return "What sharing gained is not known: there were too few steps."
    took = f"Together the jobs took {together:.3g} s from the first step to the last."
    for row, timeline, _ in known:
        if row in unknown:
            shared = float(overlap(begin, end, timeline.running).sum())
            return f"{took} {_gain_without(row['name'], shared, together - most, together - least)}"
    return f"{took} {_compared(least / together, most / together, most)}"


def _compared(least: float, most: float, one_by_one: float) -> str:
    """The ratios of the time one after the other to that together, at least and at most."""
    if most >= 1 and least < _EXACT * most:
        known = "Sharing was" if least >= 1 else "What sharing gained is not known: it was"
        return (
            f"{known} {least:.2f} to {most:.2f} times as fast as one after the other: in steps that took long, jobs "
            "evaluated, or they waited for each other."
        )
    by = f"One after the other they would take about {one_by_one:.3g} s, by the times of their steps alone:"
    if most < 1:
        return f"{by} sharing was slower, it took {1 / most:.2f} times as long."
    return f"{by} sharing was {most:.2f} times as fast."


def _gain_without(name: str, shared: float, least: float, most: float) -> str:
    """What can be said if one job has no step time alone. It took `shared` seconds; if it takes less alone than
    what the others have left, `least` to `most` seconds, sharing was slower."""
    if most <= 0:
        return f"Sharing was faster, however long '{name}' takes alone."
    if least >= shared:
        return f"Sharing was slower, even if '{name}' takes {shared:.3g} s alone, as it did shared."
    return (
        f"Sharing was faster if '{name}' takes more than {most:.3g} s alone, which is not known; shared it took "
        f"{shared:.3g} s."
    )


def _time_alone(row: Row, timeline: Timeline, steps: Steps, begin: Numbers, end: Numbers) -> tuple[float, float]:
    """How long a job alone would take for what it did from `begin` to `end`, at least and at most. For each step its
    time alone; for the rest, such as evaluation, as long as it took. What it was stalled may be in that, too."""
    inside = steps.ends > begin
    counted = inside & ~steps.paused
    in_steps = timeline.ran(np.maximum(steps.begins[counted], begin), steps.ends[counted])
    most = int(counted.sum()) * row["alone_s"] + max(0.0, timeline.ran(begin, end) - in_steps)
    long = inside & steps.paused & steps.shared
    in_long = timeline.ran(np.maximum(steps.begins[long], begin), steps.ends[long])
    return most - min(in_long, row.get("stalled_s", 0.0)), most
