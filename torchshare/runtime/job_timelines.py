"""When jobs made steps, waited and ran, from the events of a runtime."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchshare import _C
from torchshare.report.figures import Numbers

_WARM_UP_STEPS = 3  # are in no step time
_ENOUGH_STEPS = 20  # of a step time alone


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


def timelines(jobs: Sequence[_C.Job], events: Sequence[_C.Event]) -> tuple[dict[str, Timeline], float]:
    """The jobs' timelines, and the end of the last event."""
    origin = min((begin for _, _, begin, *_ in events), default=0)
    last = (max((end for _, _, _, end, *_ in events), default=origin) - origin) / 1e9
    began = {job.name: job.span_ns[0] or math.inf for job in jobs}
    rows: dict[str, dict[str, list[tuple[float, float]]]] = {job.name: {} for job in jobs}
    for kind, job, begin_ns, end_ns, number, detail in events:
        if begin_ns < began.get(job, math.inf):
            continue  # of an ended job that had the name
        begin, end = (begin_ns - origin) / 1e9, (end_ns - origin) / 1e9
        if kind == "wait":
            rows[job].setdefault(f"wait {detail}", []).append((begin, end))
        elif kind == "memory":
            rows[job].setdefault(kind, []).append((end, number))
        elif kind in ("step", "input"):
            rows[job].setdefault(kind, []).append((begin, end))

    def pairs(job: str, kind: str) -> Numbers:
        return np.array(rows[job].get(kind, []), dtype=float).reshape(-1, 2)

    def running(job: _C.Job) -> Numbers:
        begin, end = ((time - origin) / 1e9 if time else None for time in job.span_ns)
        if begin is None:
            return np.empty((0, 2))
        parked = np.concatenate([pairs(job.name, "wait suspended"), pairs(job.name, "wait held")])
        return np.sort([begin, *parked.ravel(), max(last, begin) if end is None else end]).reshape(-1, 2)

    found = {
        job.name: Timeline(
            steps=pairs(job.name, "step")[:, 1],
            inputs=pairs(job.name, "input"),
            waits={kind[5:]: pairs(job.name, kind) for kind in rows[job.name] if kind.startswith("wait ")},
            memory=pairs(job.name, "memory"),
            running=running(job),
        )
        for job in jobs
    }
    return found, last


def overlap(begins: Numbers, ends: Numbers, spans: Numbers) -> Numbers:
    """How much of each interval [begin, end] the spans cover; they do not overlap each other. Seconds."""
    if len(spans) == 0:
        return np.zeros(len(begins))
    times = spans[spans[:, 0].argsort()].ravel()
    # Until each time. Bit-equal at the end of a span and at the begin of the next: nothing is covered in between.
    covered: Numbers = np.repeat(np.cumsum([0, *np.diff(times)[::2]]), 2)[1:-1]
    within: Numbers = np.interp(ends, times, covered) - np.interp(begins, times, covered)
    return within


def step_times(timeline: Timeline, others: Sequence[Timeline]) -> tuple[float | None, float | None]:
    """Mean step time while no other job ran, if there were enough such steps, and while another ran. Seconds."""
    ends = timeline.steps[_WARM_UP_STEPS:]
    begins, ends = ends[:-1], ends[1:]
    beside: Numbers = np.zeros(len(begins))
    for other in others:
        beside = np.maximum(beside, overlap(begins, ends, other.running))
    periods = ends - begins - overlap(begins, ends, timeline.waits.get("suspended", np.empty((0, 2))))
    alone, shared = periods[beside == 0], periods[beside > 0]
    return (
        float(alone.mean()) if len(alone) >= _ENOUGH_STEPS else None,
        float(shared.mean()) if len(shared) > 0 else None,
    )
