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
from torchshare.cluster.queued_job import Gone, HostRecord, QueuedJob, Span, key_of
from torchshare.context.results import ENDED

_CRASHES = 3  # of the hosts that a job ran on, before it is given up
_GIB = 2**30


@dataclass(frozen=True)
class QueueSettings:
    policy: str = "pair-srsf"
    interference: float = 1.1
    """The ratio of pairs that have not been measured, neither here nor in a profile."""
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
        self.submissions: dict[str, QueuedJob] = {}
        self.open: dict[str, QueuedJob] = {}
        """Those that have not ended."""
        self.misplaced: dict[int, QueuedJob] = {}
        """Those for which something is to be done, by number."""
        self.hosts: dict[int, HostRecord] = {}
        """By device."""
        self.spans: list[Span] = []
        """Of jobs that have left their device."""
        self.learned = Learned(settings.interference, settings.duration)
        self.live = _core.LiveScheduler(_cluster(settings), settings.policy)
        self.live.lose(0, 0.0)  # until there is a host
        self.origin: float | None = None
        self.now = 0.0
        self.rows: dict[tuple[str, str], int] = {}
        self.numbers: list[QueuedJob] = []

    def next_time(self, clock: float) -> float:
        """Of the next event. Times do not decrease, whatever the clocks of this scheduler and its predecessor."""
        return max(clock, self.time)

    @property
    def time(self) -> float:
        """Of the last event."""
        return self.now + (self.origin or 0.0)

    def looks_again(self, clock: float) -> bool:
        """Whether the policy wants to decide again although nothing has happened."""
        return self.live.look_again <= self._since_origin(clock)

    def _since_origin(self, time: float) -> float:
        return max(self.now, time - (time if self.origin is None else self.origin))

    def apply(self, event: Event) -> None:
        if event["event"] == "scheduler":
            return
        if self.origin is None:
            self.origin = event["time"]
        self.now = self._since_origin(event["time"])
        getattr(self, f"_on_{event['event']}")(event)

    def _on_submit(self, event: Event) -> None:
        spec = JobSpec(**event["job"])
        estimate = spec.duration or self.learned.duration(spec.model)
        kind = (spec.model, key_of(spec.env))
        is_news = self.learned.set_profiled(spec.model, spec.ratios)
        if kind not in self.rows or is_news:
            self.rows.setdefault(kind, len(self.rows))
            self.set_ratios()
        number = self.add(spec, estimate, self.now)
        job = QueuedJob(spec, number, event["time"], estimate)
        self.numbers.append(job)
        self.jobs[spec.name] = self.open[spec.name] = job
        self.submissions[spec.submission] = job
        self._obey(self.live.arrive(number, self.now))

    def add(self, spec: JobSpec, estimate: float, arrival: float) -> int:
        """Of a job whose kind has a row, in the live scheduler."""
        row, level = self.rows[spec.model, key_of(spec.env)], _core.priority_level(spec.priority)
        return self.live.add(arrival, estimate, spec.gpus, (spec.memory or 0) / _GIB, row, level)

    def drop_ended(self, kept: int) -> None:
        """Forgets the jobs that have ended, but for the last ones."""
        ended = sorted((job for job in self.jobs.values() if job.outcome), key=lambda job: job.ended or 0.0)
        for job in ended[: max(0, len(ended) - kept)]:
            del self.jobs[job.spec.name], self.submissions[job.spec.submission]
        self.spans = [span for span in self.spans if span[0] in self.jobs]

    def _on_cancel(self, event: Event) -> None:
        job = self.jobs[event["job"]]
        job.cancelled, job.wanted = True, ()
        self._obey(self.live.end(job.number, self.now))
        if job.place:
            self.look_at(job)
        else:
            self._end(job, "cancelled", event)

    def _on_host(self, event: Event) -> None:
        gpu = event["gpu"]
        if gpu > 0 and gpu not in self.hosts:
            self.live.add_node()
        self.hosts[gpu] = HostRecord(event["node"], event["index"], event["token"], event["env"])
        self._obey(self.live.gain(gpu, self.now))

    def _on_lost(self, event: Event) -> None:
        host = self.hosts[event["gpu"]]
        jobs = list(host.jobs.values())
        host.up = False
        self._obey(self.live.lose(event["gpu"], self.now))
        for job in jobs:
            job.steps = event["steps"].get(job.spec.name, job.steps)
            if all(gone.state != "lost" for gone in job.gone.values()):  # once for all its ranks
                job.crashes += event["crashed"] and event["blamed"] in (None, job.spec.name)
            # A gang that failed, and did not stop until its process was ended, is not run again.
            is_stopped = event["blamed"] == job.spec.name and job.has_failed_ranks
            gone = Gone("cancelled" if is_stopped else "lost", event["reason"])
            self._rank_leaves(job, event["gpu"], gone, event)

    def _on_start(self, event: Event) -> None:
        job = self.jobs[event["job"]]
        job.attempt, job.place, job.began = event["attempt"], tuple(event["gpus"]), event["time"]
        job.can_save = False
        job.step_times.restart()
        for gpu in job.place:
            self.hosts[gpu].jobs[job.spec.name] = job
        self.live.set_pinned(job.number, True)
        self.look_at(job)

    def _on_stop(self, event: Event) -> None:
        job = self.jobs[event["job"]]
        job.stopping, job.stopped = True, event["time"]
        self.look_at(job)

    def _on_saves(self, event: Event) -> None:
        """The job writes checkpoints: from now on it can be suspended."""
        job = self.jobs[event["job"]]
        job.can_save = True
        self.live.set_pinned(job.number, False)
        self._obey(self.live.look(self.now))

    def _on_left(self, event: Event) -> None:
        job, gone = self.jobs[event["job"]], Gone(event["state"], event["error"])
        job.steps = event["steps"]
        if job.place:
            self._rank_leaves(job, event["gpu"], gone, event)
        else:  # it was lost, and had ended
            self._job_leaves(job, gone, event)

    def _rank_leaves(self, job: QueuedJob, gpu: int, gone: Gone, event: Event) -> None:
        job.gone[gpu] = gone
        del self.hosts[gpu].jobs[job.spec.name]
        if len(job.gone) < len(job.place):
            self.look_at(job)
        else:
            self._job_leaves(job, job.verdict(), event)

    def _job_leaves(self, job: QueuedJob, gone: Gone, event: Event) -> None:
        if job.place:
            job.ran += event["time"] - job.began
            self.spans += [(job.spec.name, gpu, job.began, event["time"]) for gpu in job.place]
        state, error = gone.state, gone.error
        if state == "lost" and job.crashes >= _CRASHES and not job.cancelled:
            state, error = "failed", f"its host ended {job.crashes} times, at last: {gone.error}"
        elif state == "lost":
            state, error = "suspended", ""
        job.place, job.gone, job.stopping, job.error = (), {}, False, error
        self.look_at(job)
        if state != "suspended" or job.cancelled:
            if not job.cancelled:
                self._obey(self.live.end(job.number, self.now))
            self._end(job, state if state in ENDED else "cancelled", event)

    def _on_refuse(self, event: Event) -> None:
        job = self.jobs[event["job"]]
        job.error = event["error"]
        self._obey(self.live.end(job.number, self.now))
        self._end(job, "failed", event)

    def _on_ratio(self, event: Event) -> None:
        self.learned.set_ratio(event["model"], event["partner"], event["ratio"])
        self.set_ratios()
        self._obey(self.live.look(self.now))

    def _on_look(self, event: Event) -> None:
        self._obey(self.live.look(self.now))

    def _end(self, job: QueuedJob, outcome: str, event: Event) -> None:
        job.outcome, job.ended, job.wanted = outcome, event["time"], ()
        del self.open[job.spec.name]
        self.look_at(job)
        if outcome == "finished":
            self.learned.set_duration(job.spec.model, max(job.ran, 1e-3))

    def _obey(self, orders: tuple[list[int], list[int]]) -> None:
        suspend, start = orders
        for number in suspend:
            self.numbers[number].wanted = ()
        for number in start:
            self.numbers[number].wanted = tuple(self.live.gpus(number))
        for number in {*suspend, *start}:
            self.look_at(self.numbers[number])

    def look_at(self, job: QueuedJob) -> None:
        if job.is_misplaced:
            self.misplaced[job.number] = job
        else:
            self.misplaced.pop(job.number, None)

    def set_ratios(self) -> None:
        """Jobs that need different environments cannot share a process."""
        table = [
            self.learned.ratio(model, partner) if env == other else math.inf
            for (model, env), (partner, other) in itertools.product(self.rows, repeat=2)
        ]
        self.live.set_ratios(len(self.rows), table, self.now)


def _cluster(settings: QueueSettings) -> _core.Cluster:
    options = _core.ClusterOptions()
    options.gpus = options.gpus_per_node = 1
    options.gpu_memory_gib = settings.memory / _GIB
    options.restart_cost = settings.restart_cost
    options.one_gang_beside = True
    options.largest_split = 1  # other sub-batches would be other weights
    return _core.Cluster(options, 1, [1.0], [], [], [], [], [], [])
