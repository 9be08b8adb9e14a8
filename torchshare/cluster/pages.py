"""Reports of a simulation and of a queue as pages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchshare.cluster import plots
from torchshare.cluster.queued_job import Span
from torchshare.cluster.report import BASELINE, baseline_of, events_of_queue
from torchshare.cluster.simulate import Outcome, swept
from torchshare.report import figures, page
from torchshare.report.numbers import seconds

_MAX_JOBS = 100  # in the table of a queue
_MAX_NAME = 40  # characters
_MAX_REASON = 100
_MAX_SPANS = 300  # in its chart


def write_simulation(path: str | os.PathLike[str], outcomes: Sequence[Outcome], rows: Sequence[dict[str, Any]]) -> None:
    """Writes a page that compares the policies. Raises OSError on failure."""
    varied = swept(rows)
    best = min(rows, key=lambda row: row["avg_jct_s"])
    with figures.styled():
        drawn = {"simulation": plots.simulation(outcomes, rows)}
    document = {
        "title": f"torchshare: {len({row['policy'] for row in rows})} policies, {rows[0]['jobs']} jobs, simulated",
        "verdict": [_verdict(rows, best, varied)],
        "varied": varied,
        "rows": [{**row, "against_baseline": _against(row, rows, varied)} for row in rows],
        "baseline": BASELINE,
        "environment": page.origin({}),
    }
    page.write(path, "simulation.html", document, drawn)


def _verdict(rows: Sequence[dict[str, Any]], best: dict[str, Any], varied: Sequence[str]) -> str:
    text = f"Jobs complete soonest, on average after {seconds(best['avg_jct_s'])}, with {best['policy']}"
    setting = "".join(f" at {name.replace('_', ' ')} {best[name]}" for name in varied)
    gain = _against(best, rows, varied)
    if gain is None or best["policy"] == BASELINE:
        return f"{text}{setting}."
    return f"{text}{setting}: {1 + gain:.2f} times the average completion time of {BASELINE}."


def _against(row: dict[str, Any], rows: Sequence[dict[str, Any]], varied: Sequence[str]) -> float | None:
    """Its mean completion time / that of the baseline in the same setting - 1."""
    baseline = baseline_of(row, rows, varied)
    return None if baseline is None else row["avg_jct_s"] / baseline["avg_jct_s"] - 1


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
    devices = sum(1 for host in hosts if host["up"])
    document = {
        "title": f"torchshare: {len(jobs)} jobs on {devices} device{'' if devices == 1 else 's'}",
        "verdict": verdict,
        "jobs": [_row(job) for job in jobs[:_MAX_JOBS]],
        "more_jobs": max(0, len(jobs) - _MAX_JOBS),
        "environment": page.origin({}),
    }
    page.write(path, "queue.html", document, {"devices": figures.lanes(bars)} if bars else {})
