"""Every policy on AdaptDL's 240-job traces, 64 GPUs that fail: completion times by the mean time between failures."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from torchshare import _core
from torchshare.context.durations import parse_duration
from torchshare.simulation.adaptdl import read_packaged
from torchshare.simulation.failures import parse_failures
from torchshare.simulation.job_trace import Limits
from torchshare.simulation.ratios import uniform
from torchshare.simulation.simulate import Case, Outcome, Setting, simulate_all

from record import summarize

POLICIES = _core.cluster_policy_names()
BETWEEN = ("1h", "4h", "12h", "1d", "7d")
EVERY = ("10m", "1h")
REPAIR = "30m"
NODES = 0.2
RATIO = 1.25
SEEDS = 3  # of the failures


def setting(between: str | None, every: str, seed: int) -> Setting:
    if between is None:
        return Setting()
    text = f"mtbf={between},repair={REPAIR},nodes={NODES}"
    failures = parse_failures(text, Setting.gpus, Setting.gpus_per_node, seed)
    return Setting(failures=failures, checkpoint_every=parse_duration(every))


def row(policy: str, between: str | None, every: str, outcomes: list[Outcome]) -> dict[str, Any]:
    """Means over the traces and seeds; `interruptions` are of one trace."""
    figures = [outcome.figures for outcome in outcomes]
    names = ("avg_jct_s", "p99_jct_s", "makespan_s", "interruptions", "lost_gpu_s", "gpus_away")
    means = {name: statistics.fmean(each.get(name, 0.0) for each in figures) for name in names}
    return {"policy": policy, "mtbf": between, "checkpoint_every": every} | {
        name: round(mean, 4 if name == "gpus_away" else 1) for name, mean in means.items()
    }


def measure() -> list[dict[str, Any]]:
    traces = read_packaged("adaptdl:240", Limits(gpus=Setting.gpus))
    rows = []
    for between, every in [(None, EVERY[0]), *((between, every) for every in EVERY for between in BETWEEN)]:
        settings = [setting(between, every, seed) for seed in range(SEEDS if between else 1)]
        cases = [
            Case(trace, policy, uniform(RATIO), each, f"{RATIO:g}")
            for policy in POLICIES
            for trace in traces
            for each in settings
        ]
        outcomes = simulate_all(cases)
        for policy in POLICIES:
            same = [each for each in outcomes if each.case.policy == policy]
            rows.append(row(policy, between, every, same))
    return rows


if __name__ == "__main__":
    summarize("simulator_failures", __doc__, measure)
