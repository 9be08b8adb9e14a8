"""Replays recorded ops of several jobs in virtual time; see Note [What a replay knows] in csrc/planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchshare import _core
from torchshare.profiles.ops import OpTrace


@dataclass(frozen=True)
class Machine:
    """Parameters of the machine and the gate. Times in seconds."""

    cores: int
    shortest_gap_s: float
    """Shortest gap that the gate of policy="best_fit" is told of."""
    wake_latency_s: float
    device_priority: bool = True
    grace_s: float = 200e-6


@dataclass(frozen=True)
class JobReplay:
    """The outcome of one job. Step times are means: a median would hide the steps that wait."""

    job: str
    priority: str
    step_alone_s: float
    step_s: float | None
    """None if it did fewer than two steps."""
    steps: int
    waited_s: float
    """Time spent waiting at the gate."""

    @property
    def ratio(self) -> float | None:
        return None if self.step_s is None else self.step_s / self.step_alone_s


def replay(traces: Sequence[OpTrace], policy: str, machine: Machine) -> list[JobReplay]:
    """Replays until the first job, the primary, ends its trace. The others have descending priorities."""
    priorities = ["primary", "secondary", *(f"level-{level}" for level in range(2, 10))]
    if not 1 <= len(traces) <= len(priorities):
        raise ValueError(f"replay needs 1 to {len(priorities)} op traces, got {len(traces)}")
    done = _core.replay_ops(
        [(priority, trace.threads, _op_trace(trace)) for priority, trace in zip(priorities, traces, strict=False)],
        policy,
        machine.grace_s,
        machine.cores,
        machine.device_priority,
        machine.shortest_gap_s,
        machine.wake_latency_s,
    )
    return [
        JobReplay(
            job=trace.job,
            priority=priority,
            step_alone_s=step_alone_s(trace),
            step_s=float(np.diff(found.step_ends).mean()) if len(found.step_ends) > 1 else None,
            steps=len(found.step_ends),
            waited_s=found.waited_s,
        )
        for priority, trace, found in zip(priorities, traces, done, strict=False)
    ]


def step_alone_s(trace: OpTrace) -> float:
    """The mean step time of the trace, as recorded."""
    ends = np.cumsum(trace.gap + trace.duration)[trace.step_ends.astype(int) - 1]
    return float(np.diff(ends).mean())


def _op_trace(trace: OpTrace) -> _core.OpTrace:
    kind = trace.kind if len(trace.kind) else None
    return _core.OpTrace(trace.context, trace.gap, trace.idle, trace.duration, trace.step_ends.tolist(), kind)
