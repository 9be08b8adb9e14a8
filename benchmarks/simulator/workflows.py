"""pair-srsf on random workflows, jobs that wait for others, ranked without and with the remaining work of the critical
path."""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from torchshare.simulation.generated import generate
from torchshare.simulation.job_trace import Limits, Trace
from torchshare.simulation.ratios import uniform
from torchshare.simulation.simulate import Case, Outcome, Setting, simulate_all

from record import summarize

JOBS = 480
WORKFLOW = 8  # jobs, which arrive together
LOADS = (0.7, 1.0, 1.5)
SHAPES = {"chains": 1, "wide": 3}  # the most jobs that one waits for
SEEDS = 10
RATIO = 1.25


def workflows(load: float, most: int, seed: int) -> Trace:
    """AdaptDL's jobs in groups that arrive together. Each but the first waits for the one before it, or for up to
    `most` earlier ones of its group."""
    trace = generate(JOBS, Limits(gpus=Setting.gpus), mix=None, load=load, seed=seed)
    random = np.random.default_rng([seed, most])
    after: list[tuple[str, ...]] = []
    for job in range(JOBS):
        first = job - job % WORKFLOW
        count = min(job - first, int(random.integers(1, most + 1)))
        others = [job - 1] if most == 1 and job > first else first + random.choice(max(1, job - first), count, False)
        after.append(tuple(trace.names[other] for other in others))
    arrival = trace.arrival[np.arange(JOBS) - np.arange(JOBS) % WORKFLOW]
    return replace(trace, arrival=arrival, after=after)


def row(shape: str, load: float, rank_by_path: bool, outcomes: list[Outcome]) -> dict[str, Any]:
    """Means over the seeds; `avg_workflow_s` is from the arrival of a workflow to the end of its last job."""
    last = [float(outcome.jct.reshape(-1, WORKFLOW).max(axis=1).mean()) for outcome in outcomes]
    means = {
        name: round(statistics.fmean(outcome.figures[name] for outcome in outcomes), 1)
        for name in ("avg_jct_s", "makespan_s", "preemptions")
    }
    return {"shape": shape, "load": load, "rank_by_path": rank_by_path} | means | {
        "avg_workflow_s": round(statistics.fmean(last), 1)
    }  # fmt: skip


def measure() -> list[dict[str, Any]]:
    rows = []
    for shape, most in SHAPES.items():
        for load in LOADS:
            traces = [workflows(load, most, seed) for seed in range(SEEDS)]
            for rank_by_path in (False, True):
                setting = Setting(rank_by_path=rank_by_path)
                cases = [Case(trace, "pair-srsf", uniform(RATIO), setting, f"{RATIO:g}") for trace in traces]
                rows.append(row(shape, load, rank_by_path, simulate_all(cases)))
    return rows


if __name__ == "__main__":
    summarize("simulator_workflows", __doc__, measure)
