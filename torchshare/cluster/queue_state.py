"""The state of a cluster's queue, as its events have made it.

Note [Events]
Whatever happens becomes an event, and is written to the journal before anybody acts on it or is told. The state is a
function of the events alone, and so are the decisions of the policy. A new scheduler applies the journal's events and
is where the old one was.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from torchshare import _core
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.journal import Event
from torchshare.cluster.learned import Learned
from torchshare.cluster.queued_job import HostRecord, QueuedJob, Span, key_of
from torchshare.context.results import ENDED

_CRASHES = 3  # of the hosts that a job ran on, before it is given up
_GIB = 2**30


@dataclass(frozen=True)
class QueueSettings:
    policy: str = "pair-srsf"
    interference: float = 1.1
    """The ratio of pairs that have not been measured."""
    restart_cost: float = 10.0
    memory: int = 0
    """Bytes of a device; 0: ignored."""
    duration: float = 3600.0
    """Seconds that a job is taken to last if nothing is known of it."""

    def __post_init__(self) -> None:
        for name, least in (("interference", 1.0), ("restart_cost", 0.0), ("memory", 0), ("duration", 1e-3)):
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise ValueError(f"{name} must be a number of at least {least:g}, got {value}")


class QueueState:
    """Changes by `apply` only."""

    def __init__(self, settings: QueueSettings) -> None:
        self.jobs: dict[str, QueuedJob] = {}
        self.open: dict[str, QueuedJob] = {}
        """Those that have not ended."""
        self.hosts: dict[int, HostRecord] = {}
        """By device."""
        self.spans: list[Span] = []
        """Of jobs that have left their device."""
        self.learned = Learned(settings.interference, settings.duration)
        self.live = _core.LiveScheduler(_cluster(settings), settings.policy)
        self.live.lose(0, 0.0)  # until there is a host
        self._origin: float | None = None
        self._now = 0.0
        self._rows: dict[tuple[str, str], int] = {}
        self._numbers: list[QueuedJob] = []

    def next_time(self, clock: float) -> float:
        """Of the next event. Times do not decrease, whatever the clocks of this scheduler and its predecessor."""
        return max(clock, self._now + (self._origin or 0.0))

    def looks_again(self, clock: float) -> bool:
        """Whether the policy wants to decide again although nothing has happened."""
        return self.live.look_again <= self._since_origin(clock)

    def _since_origin(self, time: float) -> float:
        return max(self._now, time - (time if self._origin is None else self._origin))

    def apply(self, event: Event) -> None:
        if event["event"] == "scheduler":
            return
        self._now = self._since_origin(event["time"])
        if self._origin is None:
            self._origin = event["time"]
        getattr(self, f"_on_{event['event']}")(event)

    def _on_submit(self, event: Event) -> None:
        spec = JobSpec(**event["job"])
        estimate = spec.duration or self.learned.duration(spec.model)
        kind = (spec.model, key_of(spec.env))
        if kind not in self._rows:
            self._rows[kind] = len(self._rows)
            self._set_ratios()
        memory = (spec.memory or 0) / _GIB
        row, level = self._rows[kind], _core.priority_level(spec.priority)
        number = self.live.add(self._now, estimate, spec.gpus, memory, row, level)
        job = QueuedJob(spec, number, event["time"])
        self._numbers.append(job)
        self.jobs[spec.name] = self.open[spec.name] = job
        self._obey(self.live.arrive(number, self._now))

    def _on_cancel(self, event: Event) -> None:
        job = self.jobs[event["job"]]
        job.cancelled, job.wanted = True, None
        self._obey(self.live.end(job.number, self._now))
        if job.place is None:
            self._end(job, "cancelled", event)

    def _on_host(self, event: Event) -> None:
        gpu = event["gpu"]
        if gpu > 0 and gpu not in self.hosts:
            self.live.add_node()
        self.hosts[gpu] = HostRecord(event["node"], event["index"], event["token"], event["env"])
        self._obey(self.live.gain(gpu, self._now))

    def _on_lost(self, event: Event) -> None:
        host = self.hosts[event["gpu"]]
        jobs = list(host.jobs.values())
        host.up = False
        self._obey(self.live.lose(event["gpu"], self._now))
        for job in jobs:
            self._leave(job, event)
            job.crashes += event["crashed"]
            if job.cancelled:
                self._end(job, "cancelled", event)
            elif job.crashes >= _CRASHES:
                job.error = f"its host ended {job.crashes} times, at last: {event['reason']}"
                self._obey(self.live.end(job.number, self._now))
                self._end(job, "failed", event)

    def _on_start(self, event: Event) -> None:
        job = self.jobs[event["job"]]
        job.attempt, job.place, job.began = event["attempt"], event["gpu"], event["time"]
        job.can_save = False
        job.step_times.restart()
        self.hosts[event["gpu"]].jobs[job.spec.name] = job
        self.live.set_pinned(job.number, True)

    def _on_stop(self, event: Event) -> None:
        self.jobs[event["job"]].stopping = True

    def _on_saves(self, event: Event) -> None:
        """The job writes checkpoints: from now on it can be suspended."""
        job = self.jobs[event["job"]]
        job.can_save = True
        self.live.set_pinned(job.number, False)
        self._obey(self.live.look(self._now))

    def _on_left(self, event: Event) -> None:
        job = self.jobs[event["job"]]
        self._leave(job, event)
        job.error, job.steps = event["error"], event["steps"]
        if event["state"] != "suspended" or job.cancelled:
            if not job.cancelled:
                self._obey(self.live.end(job.number, self._now))
            self._end(job, event["state"] if event["state"] in ENDED else "cancelled", event)

    def _on_refuse(self, event: Event) -> None:
        job = self.jobs[event["job"]]
        job.error = event["error"]
        self._obey(self.live.end(job.number, self._now))
        self._end(job, "failed", event)

    def _on_ratio(self, event: Event) -> None:
        self.learned.set_ratio(event["model"], event["partner"], event["ratio"])
        self._set_ratios()
        self._obey(self.live.look(self._now))

    def _on_look(self, event: Event) -> None:
        self._obey(self.live.look(self._now))

    def _leave(self, job: QueuedJob, event: Event) -> None:
        if job.place is not None:
            job.ran += event["time"] - job.began
            self.spans.append((job.spec.name, job.place, job.began, event["time"]))
            del self.hosts[job.place].jobs[job.spec.name]
        job.place, job.stopping = None, False

    def _end(self, job: QueuedJob, outcome: str, event: Event) -> None:
        job.outcome, job.ended, job.wanted = outcome, event["time"], None
        del self.open[job.spec.name]
        if outcome == "finished":
            self.learned.set_duration(job.spec.model, max(job.ran, 1e-3))

    def _obey(self, orders: tuple[list[int], list[int]]) -> None:
        suspend, start = orders
        for number in suspend:
            self._numbers[number].wanted = None
        for number in start:
            (self._numbers[number].wanted,) = self.live.gpus(number)

    def _set_ratios(self) -> None:
        """Jobs that need different environments cannot share a process."""
        table = [
            self.learned.ratio(model, partner) if env == other else math.inf
            for (model, env), (partner, other) in itertools.product(self._rows, repeat=2)
        ]
        self.live.set_ratios(len(self._rows), table, self._now)


def _cluster(settings: QueueSettings) -> _core.Cluster:
    options = _core.ClusterOptions()
    options.gpus = options.gpus_per_node = 1
    options.gpu_memory_gib = settings.memory / _GIB
    options.restart_cost = settings.restart_cost
    options.largest_split = 1  # other sub-batches would be other weights
    return _core.Cluster(options, 1, [1.0], [], [], [], [], [], [])
