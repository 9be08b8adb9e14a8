"""Times the planner of workflows (csrc/planner/workflow_planner.h): ten random stages, each with eight
batches alone and beside four partners, under limits of 1.2 to 4 times the least latency."""

from __future__ import annotations

import re
import statistics
import time
from typing import Any

import numpy as np

from torchshare import _core

from record import summarize

STAGES, BATCHES, PARTNERS, SEEDS = 10, 8, 4, 50
PER_S = 50.0
LIMITS = (1.2, 2.0, 4.0)  # of the least latency
MOST_NODES = 2_000_000  # to compare a search that was cut short with


def stages(is_chain: bool, has_own: bool, seed: int) -> list[_core.WorkflowStage]:
    """In a chain, each follows the one before, else some of the three before. `has_own`: each has partners of its own,
    else all have the same."""
    random = np.random.default_rng(seed)
    found = []
    for stage in range(STAGES):
        before = [other for other in range(max(0, stage - 3), stage) if random.random() < 0.5]
        after = [stage - 1] if stage > 0 and (is_chain or not before) else before
        fixed, per_request = random.uniform(0.002, 0.012), random.uniform(0.001, 0.005)
        ratios, speeds = random.uniform(1, 2, PARTNERS), random.uniform(0.2, 0.9, PARTNERS)
        options = []
        for batch in range(1, BATCHES + 1):
            service = fixed + per_request * batch
            for partner, ratio, speed in [(None, 1.0, 0.0), *zip(range(PARTNERS), ratios, speeds, strict=True)]:
                index = partner if partner is None or not has_own else PARTNERS * stage + partner
                if PER_S * service * ratio < batch:
                    cost = service * ratio * (1 - speed) / batch
                    options.append(_core.StageOption(batch, index, 1.3 * service * ratio, 1.3 * service * ratio, cost))
        found.append(_core.WorkflowStage(str(stage), after, options))
    return found


def least_latency(given: list[_core.WorkflowStage]) -> float:
    """Seconds, of four digits: the planner says so where no plan is within the limit."""
    try:
        _core.plan_workflow(given, 1e-9, PER_S)
    except ValueError as error:
        return 1e-3 * float(re.search(r"at least ([\d.]+) ms", str(error))[1])
    raise AssertionError("no workflow is so quick")


def one(given: list[_core.WorkflowStage], limit: float) -> dict[str, float]:
    began = time.perf_counter()
    plan = _core.plan_workflow(given, limit, PER_S)
    took = time.perf_counter() - began
    best = plan if plan.exact else _core.plan_workflow(given, limit, PER_S, MOST_NODES)
    return {"ms": 1e3 * took, "nodes": plan.nodes, "exact": plan.exact, "excess": plan.cost / best.cost - 1}


def row(is_chain: bool, has_own: bool, limit: float) -> dict[str, Any]:
    found = []
    for seed in range(SEEDS):
        given = stages(is_chain, has_own, seed)
        found.append(one(given, 1.001 * limit * least_latency(given)))
    times = sorted(each["ms"] for each in found)
    return {
        "shape": "chain" if is_chain else "graph",
        "partners": "own" if has_own else "shared",
        "limit": limit,
        "ms": {"median": statistics.median(times), "p90": times[int(0.9 * SEEDS)], "max": times[-1]},
        "nodes": {
            "median": statistics.median(each["nodes"] for each in found),
            "max": max(each["nodes"] for each in found),
        },
        "cut": sum(not each["exact"] for each in found) / SEEDS,
        "largest_excess": max(each["excess"] for each in found),
    }


def measure() -> list[dict[str, Any]]:
    return [
        row(*each, limit) for each in ((True, True), (True, False), (False, True), (False, False)) for limit in LIMITS
    ]


if __name__ == "__main__":
    summarize("stages", __doc__, measure)
