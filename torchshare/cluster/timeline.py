"""The timeline of a queue for https://ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchshare.cluster.queued_job import Span
from torchshare.report.trace_events import trace_events


def events_of_queue(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Chrome trace events of a cluster's jobs. Time 0 is when the first one began."""
    origin = min((begin for _, _, begin, _ in spans), default=0.0)
    return trace_events([(name, begin - origin, end - origin, [gpu]) for name, gpu, begin, end in spans], 1)
