"""Every policy on AdaptDL's 240-job traces, each job with a deadline of 1.2 to 3 times its time alone."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from torchshare import _core
from torchshare.simulation.adaptdl import read_packaged
from torchshare.simulation.generated import with_deadlines
from torchshare.simulation.job_trace import Limits
from torchshare.simulation.ratios import uniform
from torchshare.simulation.simulate import Case, Outcome, Setting, simulate_all

from record import summarize

POLICIES = _core.cluster_policy_names()
FACTORS = (1.2, 3.0)
RATIOS = (1.0, 1.1, 1.25, 1.5, 2.0)
SEEDS = 3  # of the deadlines
ERROR = 0.5  # sigma of the estimates, in the rows where policies do not know the durations
COUNTS = ("deadlines", "accepted", "rejected", "met", "missed")


def row(policy: str, ratio: float, error: float, outcomes: list[Outcome]) -> dict[str, Any]:
    """Sums over the traces and seeds; `lost` is the share of jobs that were rejected or late, with the least and the
    greatest of one trace."""
    found: dict[str, Any] = {"policy": policy, "ratio": ratio, "estimate_error": error}
    found |= {name: sum(int(outcome.figures[name]) for outcome in outcomes) for name in COUNTS}
    lost = [1 - outcome.figures["met"] / outcome.figures["deadlines"] for outcome in outcomes]
    late = [outcome.figures["avg_tardiness_s"] for outcome in outcomes]
    return found | {
        "lost": round(statistics.fmean(lost), 4),
        "lost_of_one_trace": [round(min(lost), 4), round(max(lost), 4)],
        "avg_tardiness_s": round(statistics.fmean(late)),
        "max_tardiness_s": round(max(outcome.figures["max_tardiness_s"] for outcome in outcomes)),
        "avg_jct_s": round(statistics.fmean(outcome.figures["avg_jct_s"] for outcome in outcomes)),
    }


def measure() -> list[dict[str, Any]]:
    traces = [
        with_deadlines(trace, FACTORS, seed)
        for trace in read_packaged("adaptdl:240", Limits(gpus=Setting.gpus))
        for seed in range(SEEDS)
    ]
    rows = []
    for ratio, error in [*((ratio, 0.0) for ratio in RATIOS), (1.25, ERROR)]:
        cases = [
            Case(trace, policy, uniform(ratio), Setting(estimate_error=error), f"{ratio:g}")
            for policy in POLICIES
            for trace in traces
        ]
        outcomes = simulate_all(cases)
        for policy in POLICIES:
            rows.append(row(policy, ratio, error, [each for each in outcomes if each.case.policy == policy]))
    return rows


if __name__ == "__main__":
    summarize("simulator_deadlines", __doc__, measure)
