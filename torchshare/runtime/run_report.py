"""The report of a runtime: what it says, as data, and its charts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from torchshare import _C, _core
from torchshare.context.errors import described
from torchshare.context.results import Requests, Result
from torchshare.device import devices
from torchshare.report import figures, page
from torchshare.report.numbers import Numbers
from torchshare.runtime.bound import BoundReport
from torchshare.runtime.gaps import GapReport
from torchshare.runtime.job_timelines import Event, Steps, Timeline, latencies_of, origin_of, steps_of, timelines
from torchshare.runtime.sharing import step_times, verdict
from torchshare.runtime.time_spent import COMPUTING, PARTS, blocked_s, stalled_s, time_spent

_BINS = 120  # of charts over time
_BUCKETS = np.logspace(-6, 2, 49)  # of waits at the gate, in seconds
_MAX_DECISIONS = 150
_MAX_JOBS = 30  # in tables
_MAX_CURVES = 10  # in a chart
_MAX_NAME = 60  # characters
_MAX_WINDOWS = 600  # in the chart of the bound
_PACE = "bound: lower jobs may run"  # how such decisions begin, one a second


def document(
    jobs: Sequence[_C.Job],
    results: Mapping[str, Result],
    events: Sequence[Event],
    bounds: Sequence[BoundReport],
    gaps: Sequence[GapReport],
    environment: Mapping[str, str],
    dropped_events: int,
) -> tuple[dict[str, Any], dict[str, Figure]]:
    """What the report says, and its charts."""
    found, last = timelines(jobs, events)
    steps = steps_of(list(found.values()))
    rows = [_row(job, results[job.name], found[job.name], each) for job, each in zip(jobs, steps, strict=True)]
    decisions = _decisions([each for each in events if each[0] in ("state", "decision") and each[1] in found])
    bounded = next((job for job in jobs if bounds and job.name == bounds[0].job), None)
    origin = origin_of(events)
    latencies = latencies_of(list(found.values()))
    content = {
        "title": "torchshare: " + " + ".join(row["name"] for row in rows),
        "verdict": verdict(rows, list(found.values()), steps),
        "jobs": rows[:_MAX_JOBS],
        "more_jobs": max(0, len(rows) - _MAX_JOBS),
        "curves": [row["name"] for row in rows[:_MAX_CURVES]],
        "requests": [
            _requests(job.name, requests, *times)
            for job, times in list(zip(jobs, latencies, strict=True))[:_MAX_JOBS]
            if (requests := results[job.name].requests) is not None
        ],
        "periods": [
            {"job": _short(job.name), **dataclasses.asdict(periods)}
            for job in jobs[:_MAX_JOBS]
            if (periods := results[job.name].periods) is not None
        ],
        "deadlines": [
            f"{_short(result.name)}: {kept}."
            for result in (results[job.name] for job in jobs[:_MAX_JOBS])
            if (kept := result.deadline_kept) is not None
        ],
        "parts": [part for part in PARTS if part == COMPUTING or any(row["time"][part] > 0 for row in rows)],
        "bounds": [str(bound) for bound in bounds[:_MAX_CURVES]],
        "bounded": None if bounded is None else _short(bounded.name),
        "gaps": [_gap(gap) for gap in gaps[:_MAX_JOBS]],
        "decisions": [
            {"at_s": (begin - origin) / 1e9, "job": _short(job), "text": _short(detail, 2 * _MAX_NAME)}
            for _, job, begin, _, _, detail in decisions[:_MAX_DECISIONS]
        ],
        "more_decisions": max(0, len(decisions) - _MAX_DECISIONS),
        "dropped_events": dropped_events,
        "environment": dict(environment),
    }
    drawn = charts(jobs[:_MAX_CURVES], list(found.values())[:_MAX_CURVES], last)
    drawn.update(latency_chart([results[job.name].requests for job in jobs[:_MAX_CURVES]], latencies[:_MAX_CURVES]))
    if bounded is not None and (stats := bounded.bound()) is not None and (windows := stats.recent):
        drawn["bound"] = bound_chart(windows, bounds[0].max_slowdown, last, origin)
    return content, drawn


def _decisions(events: Sequence[Event]) -> list[Event]:
    """The decisions; where several about a bound follow each other, only the last."""
    paces = [detail.startswith(_PACE) for *_, detail in events]
    following = [*paces[1:], False]
    return [each for each, *both in zip(events, paces, following, strict=True) if not all(both)]


def _short(name: str, most: int = _MAX_NAME) -> str:
    return page.shortened(name, most)


def _row(job: _C.Job, result: Result, timeline: Timeline, steps: Steps) -> dict[str, Any]:
    spent = time_spent(result, timeline)
    return {
        "name": _short(job.name),
        "priority": result.priority,
        "state": result.state,
        "error": None if result.exception is None else described(result.exception),
        "steps": result.steps,
        "run_steps": result.run_steps,
        "steps_per_s": result.steps_per_s,
        "ran_s": result.ran_s,
        **step_times(job, steps),
        "stalled_s": stalled_s(result, spent),
        "memory_peak": result.memory_peak or None,
        "budget": job.memory_limit,
        "time": spent,
        "cpu_s": result.cpu_s,
        "blocked_s": blocked_s(result, spent),
    }


def _gap(gap: GapReport) -> dict[str, Any]:
    return {**dataclasses.asdict(gap), "job": _short(gap.job), "missed_s": max(0.0, gap.capacity_s - gap.filled_s)}


def _requests(job: str, requests: Requests, alone: Numbers, shared: Numbers) -> dict[str, Any]:
    return {
        "job": _short(job),
        "answered": requests.answered,
        "failed": requests.failed,
        "alone_p99_s": float(np.quantile(alone, 0.99)) if len(alone) else None,
        "shared_p99_s": float(np.quantile(shared, 0.99)) if len(shared) else None,
        "queued_p99_s": requests.queued.p99,
        "service_p99_s": requests.service.p99,
        "slo": requests.slo,
        "late": requests.late if requests.slo else None,
        "late_share": requests.late_share if requests.slo else None,
    }


def latency_chart(
    requests: Sequence[Requests | None], latencies: Sequence[tuple[Numbers, Numbers]]
) -> dict[str, Figure]:
    """The latencies of each job, alone and shared, and what it has promised; nothing without requests."""
    curves = [(job, *sides) for job, sides in enumerate(latencies) if any(len(times) > 0 for times in sides)]
    promised = [(job, each.slo) for job, each in enumerate(requests) if each is not None and each.slo]
    limits = [(job, target.limit, target.quantile) for job, slo in promised if (target := _core.LatencyTarget(slo))]
    return {"latencies": figures.latencies(curves, limits)} if curves else {}


def charts(jobs: Sequence[_C.Job], found: Sequence[Timeline], last: float) -> dict[str, Figure]:
    """The charts that there is something to show in."""
    edges = np.linspace(0, max(last, 1e-9), _BINS + 1)
    drawn = {}
    if any(len(each.steps) for each in found):
        rates = [np.histogram(each.steps, edges)[0] / np.diff(edges) for each in found]
        drawn["throughput"] = figures.throughput(edges, rates)
    if any(len(each.memory) for each in found):
        most = [_most(edges, each) for each in found]
        drawn["memory"] = figures.memory(edges, most, [job.memory_limit for job in jobs])
    waits = [np.diff(each.waits.get("gate", np.empty((0, 2)))).ravel() for each in found]
    if any(len(each) for each in waits):
        drawn["waits"] = figures.waits(
            _BUCKETS, [np.histogram(np.clip(each, *_BUCKETS[[0, -1]]), _BUCKETS)[0] for each in waits]
        )
    return drawn


def bound_chart(windows: Sequence[tuple[int, int, float]], limit: float, last: float, origin: int) -> Figure:
    """Draws the worst of every few windows, each of which is begin, end and slowdown."""
    together = math.ceil(len(windows) / _MAX_WINDOWS)
    groups = [windows[first : first + together] for first in range(0, len(windows), together)]
    worst = [max(group, key=lambda window: window[2]) for group in groups]
    times = [(end - origin) / 1e9 for _, end, _ in worst]
    return figures.bound(times, [slowdown for *_, slowdown in worst], limit, last)


def _most(edges: Numbers, timeline: Timeline) -> Numbers:
    """The most that a job held in each interval: of the steps that end in it, or of the last one before."""
    most = np.full(len(edges) - 1, np.nan)
    bins = np.clip(np.searchsorted(edges, timeline.memory[:, 0]) - 1, 0, len(most) - 1)
    for index, held in zip(bins, timeline.memory[:, 1], strict=True):
        most[index] = np.fmax(most[index], held)
    for index in range(len(most)):
        if np.isnan(most[index]):
            middle = (edges[index] + edges[index + 1]) / 2
            runs = len(timeline.running) > 0 and timeline.running[0, 0] <= middle <= timeline.running[-1, 1]
            most[index] = most[index - 1] if index > 0 and runs else 0
    return most


def environment(device: str, options: Mapping[str, Any]) -> dict[str, str]:
    """What the report names as its origin."""
    facts = {
        "options": ", ".join(f"{option}={value!r}" for option, value in options.items()) or "none",
        "device": devices.name_of(device),
        "torch": torch.__version__,
    }
    return page.origin(facts)
