"""Timelines of devices for https://ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def trace_events(spans: Iterable[tuple[str, float, float, list[int]]], per_node: int) -> list[dict[str, Any]]:
    """Chrome trace events of jobs, each with its begin, end and GPUs: a process per node, two threads per GPU, one for
    each of its concurrent jobs."""
    busy_until: dict[int, float] = {}  # per thread
    events = []
    for name, begin, end, gpus in sorted(spans, key=lambda span: span[1]):
        for gpu in gpus:
            thread = 2 * gpu if busy_until.get(2 * gpu, 0.0) <= begin else 2 * gpu + 1
            busy_until[thread] = end
            events.append(
                {
                    "name": name,
                    "ph": "X",
                    "pid": gpu // per_node,
                    "tid": thread,
                    "ts": begin * 1e6,
                    "dur": (end - begin) * 1e6,
                    "args": {"gpus": len(gpus)},
                }
            )
    return events
