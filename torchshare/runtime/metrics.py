"""Metrics of a runtime for Prometheus."""

from __future__ import annotations

import contextlib
import os
import socketserver
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from torchshare._core import RequestTimes, TimeSpread
from torchshare.context.results import Result
from torchshare.runtime.gaps import GapReport

_HOST = "127.0.0.1"
_COUNTERS: dict[str, tuple[str, Callable[[Result], float]]] = {
    "steps": ("Optimizer steps, with those before a resume", lambda result: result.steps),
    "run_steps": ("Optimizer steps of this run", lambda result: result.run_steps),
    "sub_batches": ("Sub-batches", lambda result: result.sub_batches),
    "ops": ("Ops", lambda result: result.ops),
    "run_seconds": ("Time since its start", lambda result: result.ran_s),
    "wait_seconds": (
        "Time at the gate, suspended, asleep, in checkpoints, or waiting for other ranks or the device",
        lambda result: result.waited_s,
    ),
    "input_seconds": ("Time waiting for the loader", lambda result: result.input_s),
    "cpu_seconds": ("Processor time of its thread", lambda result: result.cpu_s),
    "core_wait_seconds": ("Time ready to run, while other threads had the cores", lambda result: result.core_wait_s),
}
_GAPS: dict[str, tuple[str, Callable[[GapReport], float]]] = {
    "gaps_filled": ("Gaps into which a lower job was admitted", lambda gap: gap.gaps_filled),
    "gap_seconds": ("Expected length of its gaps", lambda gap: gap.capacity_s),
    "gap_filled_seconds": ("Duration of the ops of lower jobs", lambda gap: gap.filled_s),
    "gap_cost_seconds": ("Time that its own ops took longer", lambda gap: gap.cost_s),
}
_REQUESTS: dict[str, tuple[str, Callable[[RequestTimes], TimeSpread]]] = {
    "latency": ("From the arrival of a request to its answer", lambda times: times.latency),
    "service": ("From the time that the job took a request to its answer", lambda times: times.service),
    "queue": ("From the arrival of a request to the time that the job took it", lambda times: times.queued),
}
_EDGES_S = tuple(edge * 10.0**power for power in range(-4, 2) for edge in (1, 2.5, 5))
_servers: weakref.WeakSet[socketserver.TCPServer] = weakref.WeakSet()
_STATES = ("pending", "delayed", "running", "suspended", "finished", "failed", "cancelled")


@dataclass(frozen=True)
class Snapshot:
    """A runtime at one moment."""

    results: Mapping[str, Result]
    gaps: Iterable[GapReport]
    memory_held: Mapping[str, int]
    memory_limit: Mapping[str, int | None]
    requests: Mapping[str, RequestTimes] = field(default_factory=dict)
    """Times per job that answers requests."""


class _Collector(Collector):
    def __init__(self, look: Callable[[], Snapshot]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        now = self._look()
        for name, (text, of_result) in _COUNTERS.items():
            counter = CounterMetricFamily(f"torchshare_job_{name}", text, labels=("job", "priority"))
            for result in now.results.values():
                counter.add_metric((result.name, result.priority), of_result(result))
            yield counter
        for name, (text, of_gap) in _GAPS.items():
            counter = CounterMetricFamily(f"torchshare_job_{name}", text, labels=("job",))
            for gap in now.gaps:
                counter.add_metric((gap.job,), of_gap(gap))
            yield counter
        yield _gauge("memory_bytes", "Bytes of its tensors, if they are metered", now.memory_held)
        yield _gauge("memory_limit_bytes", "Memory budget", now.memory_limit)
        yield _gauge("memory_peak_bytes", "Peak bytes", {each.name: each.memory_peak for each in now.results.values()})
        for name, (text, of_times) in _REQUESTS.items():
            histogram = HistogramMetricFamily(f"torchshare_request_{name}_seconds", text, labels=("job",))
            for job, times in now.requests.items():
                histogram.add_metric((job,), *_buckets(of_times(times)))
            yield histogram
        failed = CounterMetricFamily("torchshare_requests_failed", "Requests without an answer", labels=("job",))
        for job, times in now.requests.items():
            failed.add_metric((job,), times.failures)
        yield failed
        yield _deadlines(now.results.values())
        late = GaugeMetricFamily("torchshare_job_lateness_seconds", "From its deadline to its end", labels=("job",))
        for result in now.results.values():
            if result.lateness_s is not None:
                late.add_metric((result.name,), result.lateness_s)
        yield late
        state = GaugeMetricFamily("torchshare_job_state", "1 for the state of the job", labels=("job", "state"))
        for result in now.results.values():
            for each in _STATES:
                state.add_metric((result.name, each), float(each == result.state))
        yield state


def _deadlines(results: Iterable[Result]) -> Metric:
    """The units of periodic jobs."""
    text = "Units of a periodic job, by what became of their deadlines"
    counter = CounterMetricFamily("torchshare_deadlines", text, labels=("job", "outcome"))
    for result in results:
        if (periods := result.periods) is not None:
            for outcome in ("met", "missed", "skipped"):
                counter.add_metric((result.name, outcome), getattr(periods, outcome))
    return counter


def _buckets(spread: TimeSpread) -> tuple[list[tuple[str, float]], float]:
    """Counts up to each edge, and the sum in seconds."""
    counts = [(str(edge), float(spread.at_most(edge))) for edge in _EDGES_S]
    return [*counts, ("+Inf", float(spread.count))], spread.mean * spread.count


def _gauge(name: str, text: str, values: Mapping[str, int | None]) -> Metric:
    gauge = GaugeMetricFamily(f"torchshare_job_{name}", text, labels=("job",))
    for job, value in values.items():
        if value is not None:
            gauge.add_metric((job,), value)
    return gauge


def _registry(look: Callable[[], Snapshot]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Collector(look))
    return registry


def text(look: Callable[[], Snapshot]) -> str:
    """The metrics in Prometheus' text format."""
    return generate_latest(_registry(look)).decode()


@contextlib.contextmanager
def served(look: Callable[[], Snapshot], port: int) -> Iterator[str]:
    """Serves the metrics to programs of this machine, and gives the address. Port 0: any that is free. Raises OSError
    if the port cannot be had."""
    server, thread = start_http_server(port, _HOST, _registry(look))
    _servers.add(server)
    try:
        yield f"http://{_HOST}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _close_after_fork() -> None:
    """A worker of a loader outlives a crashed parent for seconds, and the parent's next attempt needs the port."""
    for server in _servers:
        server.socket.close()


os.register_at_fork(after_in_child=_close_after_fork)
