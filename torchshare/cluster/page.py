"""The report of a queue as a page, and its timeline."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchshare.cluster.queued_job import Span, deadlines_text
from torchshare.report import figures, page
from torchshare.report.trace_events import trace_events

_MAX_JOBS = 100  # in the table of a queue
_MAX_NAME = 40  # characters
_MAX_REASON = 100
_MAX_SPANS = 300  # in its chart


def _row(job: Mapping[str, Any]) -> dict[str, Any]:
    names = {key: page.shortened(job[key] or "", _MAX_NAME) for key in ("name", "beside", "device")}
    return {**job, **names, "error": page.shortened(job["error"], _MAX_REASON)}


def write_queue(
    path: str | os.PathLike[str],
    jobs: Sequence[Mapping[str, Any]],
    hosts: Sequence[Mapping[str, Any]],
    spans: Iterable[Span],
) -> None:
    """Writes a page about the jobs and devices of a cluster. Raises OSError on failure."""
    ran = sorted(spans, key=lambda span: span[3])[-_MAX_SPANS:]
    events = events_of_queue(ran)
    numbers = {job["name"]: number for number, job in enumerate(jobs)}
    bars = [
        (event["tid"], event["ts"] / 1e6, event["dur"] / 1e6, numbers[event["name"]])
        for event in events
        if event["name"] in numbers
    ]
    states = [job["state"] for job in jobs]
    verdict = [", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "No jobs."]
    measured = [job["slowdown"] for job in jobs if job.get("slowdown")]
    if measured:
        mean = sum(measured) / len(measured)
        verdict.append(f"Beside another, a step takes {mean:.2f} times as long as alone, on average.")
    kept = [job["deadline"] for job in jobs if job.get("deadline")]
    if kept:
        verdict.append(f"{deadlines_text(kept)}.")
    devices = sum(1 for host in hosts if host["up"])
    document = {
        "title": f"torchshare: {len(jobs)} jobs on {devices} device{'' if devices == 1 else 's'}",
        "verdict": verdict,
        "jobs": [_row(job) for job in jobs[:_MAX_JOBS]],
        "more_jobs": max(0, len(jobs) - _MAX_JOBS),
        "environment": page.origin({}),
    }
    page.write(path, "queue.html", document, {"devices": figures.lanes(bars)} if bars else {})


def events_of_queue(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Chrome trace events of a cluster's jobs. Time 0 is when the first one began."""
    origin = min((begin for _, _, begin, _ in spans), default=0.0)
    return trace_events([(name, begin - origin, end - origin, [gpu]) for name, gpu, begin, end in spans], 1)
