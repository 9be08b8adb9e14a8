"""The state of a cluster's queue, as its events have made it.

Note [Events]
Whatever happens becomes an event, and is written to the journal before anybody acts on it or is told. The state is a
function of the events alone, and so are the decisions of the policy. A new scheduler applies the journal's events and
is where the old one was.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from torchshare import _core
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.journal import Event
from torchshare.cluster.learned import Learned
from torchshare.cluster.options import SPLITS
from torchshare.cluster.queued_job import Gone, HostRecord, QueuedJob, Span, key_of
from torchshare.cluster.settings import QueueSettings
from torchshare.context.results import ENDED, HOW_ENDED

_CRASHES = 3  # of a job without a new checkpoint, before it is given up
_ALONE = -1  # the group of a job that shares with none
_GIB = 2**30


class QueueState:
    """Changed by `apply` alone."""

    def __init__(self, settings: QueueSettings) -> None:
        self.jobs: dict[str, QueuedJob] = {}
        self.submissions: dict[str, QueuedJob] = {}
        self.open: dict[str, QueuedJob] = {}
        """The jobs that have not ended, by name."""
        self.arrays: defaultdict[str, list[QueuedJob]] = defaultdict(list)
        """The jobs of each array, by its name."""
        self.successors: defaultdict[str, list[QueuedJob]] = defaultdict(list)
        """The jobs that wait for the end of another one, by its name."""
        self.misplaced: dict[int, QueuedJob] = {}
        """The jobs that are not where the policy wants them, by number."""
        self.hosts: dict[int, HostRecord] = {}
        """The hosts by device."""
        self.spans: list[Span] = []
        """The times that jobs spent on devices which they have left since."""
        self.learned = Learned(settings.interference, settings.duration)
        self.live = _core.LiveScheduler(_cluster(settings), settings.policy)
        self.live.lose(0, 0.0, 0.0)  # until there is a host
        self.origin: float | None = None
        self.now = 0.0
        self.rows: dict[str, int] = {}
        """The number of each model in the live scheduler."""
        self.groups: dict[str, int] = {}
        """The sharing group of each environment: jobs with different ones cannot share a process."""
        self.numbers: list[QueuedJob] = []

    def next_time(self, clock: float) -> float:
        """The time of the next event. Times never decrease, also if an earlier scheduler's clock was ahead."""
        return max(clock, self.time)

    @property
    def time(self) -> float:
        """The time of the last event."""
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
        self._submit([event["job"]], event["time"])

    def _on_submit_all(self, event: Event) -> None:
        self._submit(event["jobs"], event["time"])

    def _submit(self, told: list[dict[str, Any]], time: float) -> None:
        """Adds jobs, a predecessor before its successors."""
        arriving = []
        for each in told:
            spec = JobSpec(**each)
            estimate = self.estimate_of(spec)
            self.tell_ratios(self.learned.set_profiled(spec.model, spec.ratios))
            number = self.add(spec, estimate, self.now)
            job = QueuedJob(spec, number, time, estimate)
            self.numbers.append(job)
            self.open[spec.name] = job
            self.know(job)
            job.waits_for = {name: must_finish for name, must_finish in spec.awaited.items() if name in self.open}
            if job.waits_for:
                self.expect_ends(job)
            else:
                arriving.append(job)
        numbers = self._enter(arriving)
        if numbers:
            self._obey(self.live.arrive(numbers, self.now))

    def _enter(self, jobs: list[QueuedJob], ended: QueuedJob | None = None) -> list[int]:
        """Returns the numbers of the jobs that the policy is to be told of now that they wait for no predecessors. If
        only some jobs of an array run at once, the others follow when one has `ended`."""
        changed = jobs if ended is None else [*jobs, ended]
        entering = [job for job in jobs if not job.spec.at_once]
        for array in dict.fromkeys(job.spec.array for job in changed if job.spec.at_once):
            members = self.arrays[array]
            places = members[0].spec.at_once - sum(job.has_entered and not job.outcome for job in members)
            entering += [job for job in members if job.is_held][: max(0, places)]
        for job in entering:
            job.has_entered = True
        return [job.number for job in entering]

    def know(self, job: QueuedJob) -> None:
        self.jobs[job.spec.name] = self.submissions[job.spec.submission] = job
        if job.spec.array:
            self.arrays[job.spec.array].append(job)

    def named(self, name: str) -> list[QueuedJob]:
        """The job of that name, or those of the array of that name."""
        return [self.jobs[name]] if name in self.jobs else self.arrays.get(name, [])

    def expect_ends(self, job: QueuedJob) -> None:
        for name in job.waits_for:
            self.successors[name].append(job)

    def add(self, spec: JobSpec, estimate: float, arrival: float) -> int:
        """Adds the job to the live scheduler. Returns its number there."""
        return self.live.add(arrival, estimate, *self._asked(spec, self._row(spec.model), self._group(spec)))

    def _asked(
        self, spec: JobSpec, row: int, group: int
    ) -> tuple[int, float, int, int, int, float, tuple[float, float, int]]:
        """What the live scheduler is told of a job, but for its times."""
        level, memory = _core.priority_level(spec.priority), (spec.memory or 0) / _GIB
        deadline = math.inf if spec.deadline is None else spec.deadline
        split = (spec.fixed_memory, spec.fixed_time, spec.sub_batches)
        return spec.gpus, memory, row, level, group, deadline, split

    def estimate_of(self, spec: JobSpec) -> float:
        return spec.duration or self.learned.duration(spec.model)

    def miss_with(self, specs: list[JobSpec], clock: float, others: bool) -> tuple[JobSpec, str, float] | None:
        """The first of these jobs, which have deadlines, that would make one late if they were submitted now, one after
        the other; the name of that job, itself or another one, and how many seconds from now it would end. `others`:
        whether others arrive at this instant. Changes nothing. Ratios of their profiles are not taken into account."""
        now, rows, groups = self._since_origin(clock), dict(self.rows), dict(self.groups)
        asked = [
            (
                self.estimate_of(spec),
                *self._asked(
                    spec, rows.setdefault(spec.model, len(rows)), groups.setdefault(key_of(spec.env), len(groups))
                ),
            )
            for spec in specs
        ]
        miss = self.live.miss_with(now, asked, others)
        if miss is None:
            return None
        index, number, end = miss
        known = len(self.numbers)
        late = self.numbers[number].spec if number < known else specs[number - known]
        return specs[index], late.name, end - now

    def _row(self, model: str) -> int:
        if model not in self.rows:
            self.rows[model] = self.live.add_model() if self.rows else 0
        return self.rows[model]

    def _group(self, spec: JobSpec) -> int:
        return self.groups.setdefault(key_of(spec.env), len(self.groups))

    def set_suspect(self, job: QueuedJob, suspect: bool) -> None:
        job.is_suspect = suspect
        self.live.set_group(job.number, _ALONE if suspect else self._group(job.spec))

    def drop_ended(self, kept: int) -> None:
        """Forgets the jobs that have ended, but for the last ones, and those for which open ones have waited. Those of
        an array are forgotten together."""
        needed = {name for job in self.open.values() for name in job.spec.awaited}
        arrays: dict[str, list[QueuedJob]] = {}
        for name, job in self.jobs.items():
            arrays.setdefault(job.spec.array or name, []).append(job)
        ended = [jobs for jobs in arrays.values() if all(job.outcome and job.spec.name not in needed for job in jobs)]
        ended.sort(key=lambda jobs: max(job.ended or 0.0 for job in jobs))
        excess = sum(map(len, ended)) - kept
        for jobs in ended:
            if excess < len(jobs):
                break
            excess -= len(jobs)
            self.arrays.pop(jobs[0].spec.array, None)
            for job in jobs:
                del self.jobs[job.spec.name], self.submissions[job.spec.submission]
        self.spans = [span for span in self.spans if span[0] in self.jobs]

    def _on_cancel(self, event: Event) -> None:
        self._cancel(self.jobs[event["job"]], event)

    def _on_cancel_all(self, event: Event) -> None:
        for name in event["jobs"]:
            if name in self.open:  # else it has waited for one of those before
                self._cancel(self.jobs[name], event)

    def _cancel(self, job: QueuedJob, event: Event) -> None:
        job.cancelled, job.wanted = True, ()
        if job.devices:
            self._obey(self.live.end(job.number, self.now))
            self.look_at(job)
        else:
            self._end(job, "cancelled", event, is_live=job.has_entered)

    def _on_host(self, event: Event) -> None:
        gpu = event["gpu"]
        if gpu > 0 and gpu not in self.hosts:
            self.live.add_node()
        self.hosts[gpu] = HostRecord(event["node"], event["index"], event["token"], event["env"], heard=event["time"])
        self._obey(self.live.gain(gpu, self.now))

    def _on_lost(self, event: Event) -> None:
        host = self.hosts[event["gpu"]]
        jobs = list(host.jobs.values())
        host.up = False
        if event["crashed"]:
            self._suspect(jobs, event["blamed"])
        heard = _heard(event) - (self.origin or 0.0)
        self._obey(self.live.lose(event["gpu"], heard, self.now))
        for job in jobs:
            job.steps = event["steps"].get(job.spec.name, job.steps)
            # A gang that failed, and did not stop until its process was ended, is not run again.
            is_stopped = event["blamed"] == job.spec.name and job.has_failed_ranks
            gone = Gone("cancelled" if is_stopped else "lost", event["reason"])
            self._rank_leaves(job, event["gpu"], gone, event)

    def _suspect(self, jobs: list[QueuedJob], blamed: str | None) -> None:
        """Makes the jobs of a crashed process suspects, which run alone. The crash counts for the job that is known to
        have crashed it; which of two it was shows when each has run alone."""
        for job in jobs:
            if blamed in (None, job.spec.name) and all(gone.state != "lost" for gone in job.gone.values()):
                job.crashes += blamed is not None or len(jobs) == 1  # once for all its ranks
                self.set_suspect(job, True)

    def _on_saved(self, event: Event) -> None:
        """A suspect has written a new checkpoint."""
        job = self.jobs[event["job"]]
        job.crashes, job.error = 0, ""
        self.set_suspect(job, False)
        self._obey(self.live.look(self.now))

    def _on_heard(self, event: Event) -> None:
        for gpu in event["gpus"]:
            self.hosts[gpu].heard = event["time"]

    def _on_start(self, event: Event) -> None:
        job = self.jobs[event["job"]]
        job.attempt, job.devices, job.began = event["attempt"], tuple(event["gpus"]), event["time"]
        job.split = job.wanted_split
        job.can_save = False
        job.step_times.restart()
        for gpu in job.devices:
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
        if job.devices:
            self._rank_leaves(job, event["gpu"], gone, event)
        else:  # it was lost, and had ended
            self._job_leaves(job, gone, event)

    def _rank_leaves(self, job: QueuedJob, gpu: int, gone: Gone, event: Event) -> None:
        job.gone[gpu] = gone
        del self.hosts[gpu].jobs[job.spec.name]
        if len(job.gone) < len(job.devices):
            self.look_at(job)
        else:
            self._job_leaves(job, job.verdict(), event)

    def _job_leaves(self, job: QueuedJob, gone: Gone, event: Event) -> None:
        if job.devices:
            until = max(job.began, _heard(event))
            job.ran += until - job.began
            self.spans += [(job.spec.name, gpu, job.began, until) for gpu in job.devices]
        state, error = gone.state, gone.error
        if state == "lost" and job.crashes >= _CRASHES and not job.cancelled:
            state, error = "failed", f"its host ended {job.crashes} times, at last: {gone.error}"
        elif state == "lost":
            state, error = "suspended", f"runs alone: {gone.error}" if job.is_suspect else ""
        job.devices, job.gone, job.stopping, job.error, job.trouble = (), {}, False, error, ""
        self.look_at(job)
        if state != "suspended" or job.cancelled:
            self._end(job, state if state in ENDED else "cancelled", event, is_live=not job.cancelled)

    def _on_refuse(self, event: Event) -> None:
        job = self.jobs[event["job"]]
        job.error = event["error"]
        self._end(job, "failed", event, is_live=job.has_entered)

    def _on_ratio(self, event: Event) -> None:
        self.learned.set_ratio(event["model"], event["partner"], event["ratio"])
        self.tell_ratios([(event["model"], event["partner"])])
        self._obey(self.live.look(self.now))

    def _on_look(self, event: Event) -> None:
        self._obey(self.live.look(self.now))

    def _end(self, job: QueuedJob, outcome: str, event: Event, *, is_live: bool) -> None:
        """Ends a job; `is_live` if the policy still has it."""
        released = self._enter(self._close(job, outcome, event["time"]), job)
        if is_live:
            self._obey(self.live.end(job.number, self.now, released))
        elif released:
            self._obey(self.live.release(released, self.now))
        if outcome == "finished" and "heard" not in event:  # else it may have run longer
            self.learned.set_duration(job.spec.model, max(job.ran, 1e-3))

    def _close(self, job: QueuedJob, outcome: str, time: float) -> list[QueuedJob]:
        """Sets the outcome of a job, and cancels those for which it had to finish if it has not. Returns the jobs that
        wait for no other any more."""
        self._set_outcome(job, outcome, time)
        released: list[QueuedJob] = []
        ended = [job]
        for each in ended:
            for successor in self.successors.pop(each.spec.name, ()):
                must_finish = successor.waits_for.pop(each.spec.name)
                if successor.outcome:
                    continue
                if must_finish and each.outcome != "finished":
                    successor.error = f"it waited for job '{each.spec.name}', which {HOW_ENDED[each.outcome]}"
                    self._set_outcome(successor, "cancelled", time)
                    ended.append(successor)
                elif not successor.waits_for:
                    released.append(successor)
        return released

    def _set_outcome(self, job: QueuedJob, outcome: str, time: float) -> None:
        job.outcome, job.ended, job.wanted = outcome, time, ()
        del self.open[job.spec.name]
        self.look_at(job)

    def _obey(self, orders: tuple[list[int], list[int]]) -> None:
        suspend, start = orders
        for number in suspend:
            self.numbers[number].wanted = ()
        for number in start:
            self.numbers[number].wanted = tuple(self.live.gpus(number))
            self.numbers[number].wanted_split = self.live.sub_batches(number)
        for number in {*suspend, *start}:
            self.look_at(self.numbers[number])

    def look_at(self, job: QueuedJob) -> None:
        if job.is_misplaced:
            self.misplaced[job.number] = job
        else:
            self.misplaced.pop(job.number, None)

    def tell_ratios(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Gives the ratios of these pairs to the live scheduler; all others have the default there."""
        for model, partner in pairs:
            self.live.set_ratio(self._row(model), self._row(partner), self.learned.ratio(model, partner), self.now)


def _heard(event: Event) -> float:
    """The last time at which a job that has left is known to have run."""
    return float(event["heard"] if "heard" in event else event["time"])


def _cluster(settings: QueueSettings) -> _core.Cluster:
    options = _core.ClusterOptions()
    options.gpus = options.gpus_per_node = 1
    options.gpu_memory_gib = settings.memory / _GIB
    options.restart_cost = settings.restart_cost
    options.one_gang_beside = True
    options.largest_split = SPLITS[-1]  # jobs have their own
    options.keep_splits = True
    return _core.Cluster(options, 1, [settings.interference], *([[]] * 11))
