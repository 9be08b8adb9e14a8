"""The figures of a queue, as Ray's metrics: Ray offers them to Prometheus."""

from __future__ import annotations

from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from torchshare.cluster.job_queue import JobQueue
from torchshare.context.results import ENDED

_SECONDS = [10.0**exponent * digit for exponent in range(6) for digit in (1, 3)]


class Metrics:
    def __init__(self) -> None:
        self._jobs = Gauge("torchshare_jobs", "Jobs that have not ended.", ("state",))
        self._devices = Gauge("torchshare_devices", "Devices, by the number of their jobs.", ("jobs",))
        self._busy = Gauge("torchshare_busy_devices", "Devices that a job of this priority has.", ("priority",))
        self._ended = Counter("torchshare_ended_jobs", "Jobs that have ended.", ("state",))
        self._completion = Histogram(
            "torchshare_completion_seconds", "From a job's submission to its end.", boundaries=_SECONDS
        )
        self._slowdown = Gauge("torchshare_slowdown", "Mean measured slowdown of jobs beside another.")
        self._seen: set[str] = set()
        self._tags: dict[Any, set[str]] = {}

    def update(self, queue: JobQueue) -> None:
        """Jobs that had ended before the first call do not count: an earlier scheduler has counted them."""
        first, rows = not self._tags, queue.rows()
        for row in rows:
            if row["state"] in ENDED and row["name"] not in self._seen:
                self._seen.add(row["name"])
                if not first:
                    self._ended.inc(1, {"state": row["state"]})
                    self._completion.observe(row["elapsed_s"])
        running = [row for row in rows if row["device"] is not None]
        slowdowns = [row["slowdown"] for row in running if row["slowdown"] is not None]
        self._slowdown.set(sum(slowdowns) / len(slowdowns) if slowdowns else 1.0)
        states = [row["state"] for row in rows if row["state"] not in ENDED]
        self._set(self._jobs, "state", states)
        self._set(self._devices, "jobs", [str(len(host.jobs)) for host in queue.hosts.values() if host.up])
        self._set(self._busy, "priority", [row["priority"] for row in running])

    def _set(self, gauge: Gauge, tag: str, values: list[str]) -> None:
        """Counts the values. Those that no longer occur become 0."""
        known = self._tags.setdefault(gauge, set())
        known.update(values)
        for value in known:
            gauge.set(values.count(value), {tag: value})
