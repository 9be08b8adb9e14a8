"""Where the time of a job went."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from torchshare.context.results import Result
from torchshare.runtime.job_timelines import Timeline, overlap

COMPUTING = "computing"
READY = "waiting for a core"
INPUT = "waiting for input"
OTHER_WAITS = "other waits"
_WAITS = ("gate", "suspended", "held", "asleep", "collective", "checkpoint", "device", OTHER_WAITS)
PARTS = (COMPUTING, READY, INPUT, *_WAITS)


def time_spent(result: Result, timeline: Timeline) -> dict[str, float]:
    """Seconds of each of PARTS."""
    spent = dict.fromkeys(PARTS, 0.0)
    waits = np.concatenate([*timeline.waits.values(), np.empty((0, 2))])
    in_input = float(overlap(timeline.inputs[:, 0], timeline.inputs[:, 1], waits).sum())
    for reason, rows in timeline.waits.items():
        spent[reason if reason in spent else OTHER_WAITS] += float(np.diff(rows).sum())
    spent[OTHER_WAITS] += max(0.0, result.waited_s - float(np.diff(waits).sum()))  # going on, or in dropped events
    spent[INPUT] = max(0.0, result.input_s - in_input)
    spent[READY] = min(result.core_wait_s, max(0.0, result.ran_s - sum(spent.values())))
    spent[COMPUTING] = max(0.0, result.ran_s - sum(spent.values()))
    return spent


def blocked_s(result: Result, spent: Mapping[str, float]) -> float | None:
    """How long its thread used no processor while it computed or waited for input. None if that is not known."""
    blocked = spent[COMPUTING] + spent[INPUT] - result.cpu_s
    return max(0.0, blocked) if result.cpu_s > 0 else None


def stalled_s(result: Result, spent: Mapping[str, float]) -> float:
    """How long it may have waited for another job, at most: for a core, for the interpreter lock."""
    return spent[READY] + max(0.0, (blocked_s(result, spent) or 0.0) - spent[INPUT])
