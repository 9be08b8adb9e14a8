"""When jobs made steps, waited and ran, from the events of a runtime."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchshare import _C
from torchshare.report.numbers import Numbers

Flags = NDArray[np.bool_]

Event: TypeAlias = tuple[str, str, int, int, int, str]
"""Kind, job, begin in ns, end in ns, number, detail; see `Runtime.events`."""

_WARM_UP_STEPS = 3  # are in no step time
_ENOUGH_STEPS = 20  # of a step time alone
_PAUSE = 5  # times as long as the others


@dataclass(frozen=True)
class Timeline:
    """The events of one job, by kind, in seconds since the first event of the runtime."""

    steps: Numbers
    """Ends."""
    inputs: Numbers
    """Begins and ends, a row each."""
    waits: dict[str, Numbers]
    """The same, by what they are for."""
    memory: Numbers
    """Ends of steps, and the most bytes held in each."""
    running: Numbers
    """Begins and ends of the times in which it ran, neither suspended nor held."""
    first_step: int = 1
    """The number of the first step that is known."""
    requests: Numbers = field(default_factory=lambda: np.empty((0, 2)))
    """Arrivals and answers, a row each."""

    def waited(self, begins: Numbers, ends: Numbers, *reasons: str) -> Numbers:
        """How much of each interval the job waited for one of the reasons. Seconds."""
        rows = [self.waits[reason] for reason in reasons if reason in self.waits]
        return overlap(begins, ends, np.concatenate([*rows, np.empty((0, 2))]))

    def ran(self, begins: Numbers, ends: Numbers) -> float:
        """How long the job ran in the intervals, without its waits at the gate. Seconds."""
        return float((overlap(begins, ends, self.running) - self.waited(begins, ends, "gate")).sum())


@dataclass(frozen=True)
class Lone:
    """Steps while no other job ran. Times in seconds."""

    mean: float
    quartiles: tuple[float, float]
    count: int
    first: int
    """Their numbers; those between may not all be of them."""
    last: int


@dataclass(frozen=True)
class Steps:
    """The steps of a job but the first, each from the end of the one before."""

    begins: Numbers
    ends: Numbers
    times: Numbers
    """Without the time in which the job was suspended or held. Seconds."""
    shared: Flags
    """Another job ran meanwhile."""
    paused: Flags
    """It took much longer than the other alone or shared steps: the job evaluated or saved, for example."""

    first: int = 2
    """The number of the first of them."""

    @property
    def alone(self) -> Lone | None:
        """The steps while no other job ran; None of few. Those right after another has ended are left out, too."""
        settled = ~self.shared & ~self.paused
        for before in range(1, _WARM_UP_STEPS + 1):
            settled[before:] &= ~self.shared[:-before]
        indices = np.flatnonzero(settled[_WARM_UP_STEPS:]) + _WARM_UP_STEPS
        if len(indices) < _ENOUGH_STEPS:
            return None
        times = self.times[indices]
        q25, q75 = np.quantile(times, [0.25, 0.75])
        first, last = self.first + indices[0], self.first + indices[-1]
        return Lone(float(times.mean()), (float(q25), float(q75)), len(indices), int(first), int(last))

    @property
    def shared_s(self) -> float | None:
        """The mean time of a step while another job ran."""
        times = self.times[_WARM_UP_STEPS:][(self.shared & ~self.paused)[_WARM_UP_STEPS:]]
        return float(times.mean()) if len(times) > 0 else None


def timelines(jobs: Sequence[_C.Job], events: Sequence[Event]) -> tuple[dict[str, Timeline], float]:
    """The jobs' timelines, and the end of the last event; of a job that has not ended, until now."""
    origin = origin_of(events)
    spans = {job.name: _span(job) for job in jobs}
    ends = [end for _, _, _, end, *_ in events] + [end for _, end in spans.values()]
    last = (max(ends, default=origin) - origin) / 1e9
    began = {name: begin or math.inf for name, (begin, _) in spans.items()}
    rows: dict[str, dict[str, list[tuple[float, float]]]] = {job.name: {} for job in jobs}
    states: dict[str, tuple[float, str]] = {}
    first_steps: dict[str, int] = {}
    for kind, job, begin_ns, end_ns, number, detail in events:
        if (end_ns if kind == "request" else begin_ns) < began.get(job, math.inf):
            continue  # of an ended job that had the name
        begin, end = (begin_ns - origin) / 1e9, (end_ns - origin) / 1e9
        if kind == "wait":
            rows[job].setdefault(f"wait {detail}", []).append((begin, end))
        elif kind == "memory":
            rows[job].setdefault(kind, []).append((end, number))
        elif kind in ("step", "input", "request"):
            rows[job].setdefault(kind, []).append((begin, end))
            if kind == "step":
                first_steps.setdefault(job, number + 1)
        elif kind == "state":
            states[job] = (begin, detail)
    for job, (since, state) in states.items():
        waits = [*rows[job].get("wait suspended", []), *rows[job].get("wait held", [])]
        if state == "suspended" and all(end <= since for _, end in waits):  # it goes on: it is an event once it is over
            rows[job].setdefault("wait suspended", []).append((since, last))

    def pairs(job: str, kind: str) -> Numbers:
        return np.array(rows[job].get(kind, []), dtype=float).reshape(-1, 2)

    def running(job: str) -> Numbers:
        if spans[job][0] == 0:
            return np.empty((0, 2))
        begin, end = ((time - origin) / 1e9 for time in spans[job])
        parked = np.concatenate([pairs(job, "wait suspended"), pairs(job, "wait held")])
        return np.sort([begin, *parked.ravel(), end]).reshape(-1, 2)

    found = {
        job.name: Timeline(
            steps=pairs(job.name, "step")[:, 1],
            inputs=pairs(job.name, "input"),
            waits={kind[5:]: pairs(job.name, kind) for kind in rows[job.name] if kind.startswith("wait ")},
            memory=pairs(job.name, "memory"),
            running=running(job.name),
            first_step=first_steps.get(job.name, 1),
            requests=pairs(job.name, "request"),
        )
        for job in jobs
    }
    return found, last


def origin_of(events: Sequence[Event]) -> int:
    """When the first event began; not of a request, which may be older than the runtime."""
    return min((begin for kind, _, begin, *_ in events if kind != "request"), default=0)


def _span(job: _C.Job) -> tuple[int, int]:
    """Begin and end in ns, or now; 0 and 0 of a job that has not begun."""
    begin, end = job.span_ns
    return begin, end or begin + int(1e9 * job.stats().ran_s)


def overlap(begins: Numbers, ends: Numbers, spans: Numbers) -> Numbers:
    """How much of each interval [begin, end] the spans cover; they do not overlap each other. Seconds."""
    if len(spans) == 0:
        return np.zeros(len(begins))
    times = spans[spans[:, 0].argsort()].ravel()
    # Until each time. Bit-equal at the end of a span and at the begin of the next: nothing is covered in between.
    covered: Numbers = np.repeat(np.cumsum([0, *np.diff(times)[::2]]), 2)[1:-1]
    within: Numbers = np.interp(ends, times, covered) - np.interp(begins, times, covered)
    return within


def union(spans: Numbers) -> Numbers:
    """The times that at least one span covers, as spans that do not overlap."""
    spans = spans[spans[:, 0].argsort()]
    latest = np.maximum.accumulate(spans[:, 1])
    apart = spans[1:, 0] > latest[:-1]
    edge = np.ones(min(1, len(spans)), dtype=bool)
    return np.column_stack([spans[np.append(edge, apart), 0], latest[np.append(apart, edge)]])


def running_of(found: Sequence[Timeline]) -> Numbers:
    """When each of the jobs ran, in their order."""
    return np.concatenate([np.empty((0, 2)), *(each.running for each in found)])


def others_of(found: Sequence[Timeline]) -> list[Numbers]:
    """When others ran, for each of the jobs."""
    spans = running_of(found)
    owners = np.repeat(np.arange(len(found)), [len(each.running) for each in found])
    return [spans[owners != job] for job in range(len(found))]


def steps_of(found: Sequence[Timeline]) -> list[Steps]:
    """The steps of each job."""
    return [_steps(each, others) for each, others in zip(found, others_of(found), strict=True)]


def latencies_of(found: Sequence[Timeline]) -> list[tuple[Numbers, Numbers]]:
    """The latencies of the requests to each job: of those during which no other job ran, and of the others. Seconds."""
    return [_latencies(each.requests, others) for each, others in zip(found, others_of(found), strict=True)]


def _latencies(requests: Numbers, others: Numbers) -> tuple[Numbers, Numbers]:
    begins, ends = requests.T
    shared = overlap(begins, ends, union(others)) > 0
    return (ends - begins)[~shared], (ends - begins)[shared]


def _steps(timeline: Timeline, others: Numbers) -> Steps:
    begins, ends = timeline.steps[:-1], timeline.steps[1:]
    if len(ends) > 0:
        others = others[(others[:, 0] < ends[-1]) & (others[:, 1] > begins[0])]
    times = ends - begins - timeline.waited(begins, ends, "suspended", "held")
    own = times - timeline.waited(begins, ends, "gate")
    shared = overlap(begins, ends, union(others)) > 0
    paused = np.zeros(len(ends), dtype=bool)
    for alike in (shared, ~shared):
        paused |= alike & (own > _PAUSE * np.median(own[alike])) if alike.any() else False
    return Steps(begins, ends, times, shared, paused, timeline.first_step + 1)
