"""The queue of a cluster: what jobs there are, what runs where, and what is to be done next."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import time
from collections import ChainMap
from collections.abc import Callable, Container, Sequence
from typing import Any

from torchshare import _core
from torchshare.cluster import snapshot
from torchshare.cluster.host_status import AttemptStatus
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.journal import Event, Journal
from torchshare.cluster.options import SubmitOptions
from torchshare.cluster.queue_state import QueueState
from torchshare.cluster.queued_job import Action, EndedJob, HostRecord, QueuedJob, Span
from torchshare.cluster.settings import QueueSettings
from torchshare.context.durations import duration_text
from torchshare.context.names import numbered
from torchshare.context.results import HOW_ENDED
from torchshare.runtime.declared import check

log = logging.getLogger("torchshare")

_COMPACTED = 10_000  # events in a journal
_KEPT = 1000  # jobs that have ended, in a journal that was compacted
_HEARD_S = 30.0  # how often the journal says that hosts with jobs have reported


@dataclasses.dataclass
class Batch:
    """Jobs that are submitted together, and can be accepted."""

    names: dict[str, str] = dataclasses.field(default_factory=dict)
    """The names that they get, by submission, also of jobs that the queue has already."""
    specs: dict[str, JobSpec] = dataclasses.field(default_factory=dict)
    """The new ones, by name."""
    told: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """The same, as the journal has them."""


class JobQueue:
    """The queue, whose state is made from its journal's events (see Note [Events]). Not thread-safe."""

    def __init__(
        self, journal: Journal, settings: QueueSettings | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """Raises ValueError for settings that are none, or a journal that does not fit them."""
        self._settings = settings or QueueSettings()
        self._journal = journal
        self._clock = clock
        self._state = QueueState(self._settings)
        self._heard_due = 0.0
        self._compacts_at = 0  # after a disk was full
        for number, event in enumerate(journal.events, 1):
            try:
                if event["event"] == "snapshot":
                    snapshot.restore(self._state, event)
                else:
                    self._state.apply(event)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ValueError(f"journal, event {number} ({event['event']}): cannot be applied: {error!r}") from None

    @property
    def jobs(self) -> dict[str, QueuedJob]:
        return self._state.jobs

    @property
    def hosts(self) -> dict[int, HostRecord]:
        return self._state.hosts

    # What happens

    def submit(self, spec: JobSpec, number: bool = False) -> str:
        """Returns the job's name; see `submit_all`."""
        return self.submit_all([(spec, number)])[0]

    def submit_all(self, given: Sequence[tuple[JobSpec, bool]]) -> list[str]:
        """Accepts all of the jobs, or none. Returns their names; see `check`."""
        batch = self.check(given)
        self.add(batch)
        return [batch.names[spec.submission] for spec, _ in given]

    def check(self, given: Sequence[tuple[JobSpec, bool]]) -> Batch:
        """Finds out whether all of the jobs can be accepted, before anything else happens. A job that waits for another
        one of them comes after it, and names it by its submission. One with True gets a number if its name is taken.
        The same submission twice is one job. Raises ValueError for a job that cannot be accepted."""
        batch = Batch()
        new: dict[str, JobSpec] = {}
        for spec, _ in given:
            spec.check()
            same = self._state.submissions.get(spec.submission)
            if same is None:
                new[spec.submission] = spec
            else:
                batch.names[spec.submission] = same.spec.name
        names = self._names(list(new.values()), {_key(spec) for spec, number in given if number})
        for spec in new.values():
            name = names[_key(spec)]
            own = f"{name}_{spec.index}" if spec.array else name
            spec = self._accepted(dataclasses.replace(spec, name=own, array=name if spec.array else ""), batch)
            batch.specs[own] = spec
            batch.names[spec.submission] = own
        batch.told = [_told(spec, self._settings) for spec in batch.specs.values()]
        self._check_deadlines(list(batch.specs.values()))
        return batch

    def _names(self, new: list[JobSpec], with_number: set[str]) -> dict[str, str]:
        """The names that jobs and arrays get, by `_key`. A name is that of one job or array; an array also takes those
        of its jobs. Raises ValueError for one that is taken."""
        indices: dict[str, list[int]] = {}
        given: dict[str, str] = {}
        for spec in new:
            indices.setdefault(_key(spec), []).extend([spec.index] if spec.array else [])
            given[_key(spec)] = spec.array or spec.name
        names: dict[str, str] = {}
        taken: set[str] = set()
        for key in sorted(given, key=lambda key: key in with_number):  # stable: first those that get no number
            for name in numbered(given[key]):
                all_names = [name, *(f"{name}_{index}" for index in indices[key])]
                refusal = next(filter(None, (self._refusal(each, taken) for each in all_names)), None)
                if refusal is None:
                    break
                if key not in with_number:
                    raise ValueError(refusal)
            names[key] = name
            taken.update(all_names)
        return names

    def _refusal(self, name: str, taken: set[str]) -> str | None:
        """Why a new job or array cannot have this name; None if it can."""
        if name in self.jobs:
            why = f"a job of that name is {self.jobs[name].state}"
        elif name in self._state.arrays:
            why = "there is an array of that name"
        elif name in taken:
            why = "one of that name is submitted with it"
        else:
            return None
        return f"job '{name}': job names must be unique; {why}"

    def add(self, batch: Batch) -> None:
        """Accepts jobs that were checked just before."""
        if len(batch.told) == 1:
            self._record({"event": "submit", "job": batch.told[0]})
        elif batch.told:
            self._record({"event": "submit_all", "jobs": batch.told})

    def _accepted(self, spec: JobSpec, batch: Batch) -> JobSpec:
        """The job as it is submitted, after those of the batch. Its deadline has yet to be checked."""
        check(SubmitOptions, {"name": spec.name}, "submit", spec.name)
        devices = len(self.hosts)  # those too whose process is being started again
        if spec.gpus > max(1, devices):
            raise ValueError(
                f"job '{spec.name}': gpus must be at most {devices}, the cluster's devices, got {spec.gpus}"
            )
        if self._settings.memory and (spec.memory or 0) > self._settings.memory:
            limit = self._settings.memory
            raise ValueError(f"job '{spec.name}': memory must be at most {limit}, that of a device, got {spec.memory}")
        _core.priority_level(spec.priority)  # raises ValueError
        awaited = spec.awaited.items()
        return spec.with_awaited({name: self._predecessors_of(spec, name, must, batch) for name, must in awaited})

    def _predecessors_of(self, spec: JobSpec, given: str, must_finish: bool, batch: Batch) -> list[str]:
        """The names of the jobs that this one waits for, all of an array; `given` may also be a submission. Raises
        ValueError."""
        if given in batch.names:
            return [batch.names[given]]
        submitted = self._state.submissions.get(given)
        found = [submitted] if submitted is not None else self._named_so(given)
        if not found:
            raise ValueError(f"job '{spec.name}': after names job '{given}', which the queue does not have")
        for job in found:
            if must_finish and job.outcome in ("failed", "cancelled"):
                raise ValueError(
                    f"job '{spec.name}': after names job '{job.spec.name}', which {HOW_ENDED[job.outcome]}"
                )
        return [job.spec.name for job in found]

    def _named_so(self, name: str) -> list[QueuedJob]:
        """The job of that name, or those of the array of that name."""
        return [self.jobs[name]] if name in self.jobs else self._state.arrays.get(name, [])

    def _check_deadlines(self, new: list[JobSpec]) -> None:
        """Raises ValueError if the policy keeps deadlines and would miss one."""
        unended = ChainMap[str, Any](self._state.open, {spec.name: spec for spec in new})
        arriving = [spec for spec in new if not any(name in unended for name in spec.awaited)]
        due = [spec for spec in arriving if spec.deadline is not None]
        clock = self._clock()
        miss = self._state.miss_with(due, clock, len(arriving) > 1)
        if miss is None:
            return
        spec, name, left = miss
        given = f"job '{spec.name}': deadline {duration_text(spec.deadline or 0.0)}"
        helps = "a later deadline, more devices or a submission when fewer jobs wait would help"
        if name == spec.name:
            raise ValueError(f"{given} would be missed: it is predicted to end after {duration_text(left)}; {helps}")
        limits = {each.name: each.deadline or 0.0 for each in due}
        if name in self.jobs:
            other = self.jobs[name]
            limits[name] = other.submitted + (other.spec.deadline or 0.0) - self._state.next_time(clock)
        late = left - limits[name]
        raise ValueError(
            f"{given} would make job '{name}' miss its own: it would end {duration_text(late)} late; {helps}"
        )

    def cancel(self, name: str) -> list[QueuedJob]:
        """Cancels a job, or all of an array. Returns them. Raises ValueError for an unknown name."""
        jobs = self._named_so(name) or [self.find(name)]
        names = [job.spec.name for job in jobs if not job.outcome and not job.cancelled]
        if len(names) == 1:
            self._record({"event": "cancel", "job": names[0]})
        elif names:
            self._record({"event": "cancel_all", "jobs": names})
        return jobs

    def refuse(self, name: str, error: str) -> None:
        """Fails a job that cannot be started."""
        job = self.jobs[name]
        if not job.outcome and not job.devices:
            self._record({"event": "refuse", "job": name, "error": error})

    def find(self, name: str) -> QueuedJob:
        """Raises ValueError for an unknown name."""
        if name in self._state.arrays:
            first = self._state.arrays[name][0].spec.name
            raise ValueError(f"job '{name}': that is an array; name one of its jobs, such as '{first}'")
        if name not in self.jobs:
            raise ValueError(f"job '{name}': there is no such job")
        return self.jobs[name]

    def host_up(self, node: str, index: int, token: str, env: str = "{}") -> int:
        """A host has reported for the first time; the jobs of a process that it `replaced` are lost. Returns the number
        of its device."""
        same = [gpu for gpu, host in self.hosts.items() if (host.node, host.index) == (node, index)]
        gone = [gpu for gpu, host in self.hosts.items() if not host.up]
        gpu = next(iter([*same, *gone]), len(self.hosts))
        known = self.hosts.get(gpu)
        if known is None or not known.up or known.token != token:
            self._record({"event": "host", "gpu": gpu, "node": node, "index": index, "token": token, "env": env})
        return gpu

    def replaced(self, node: str, index: int, token: str) -> int | None:
        """The device whose jobs ran in a process before this one: nobody has told yet that they are lost."""
        for gpu, host in self.hosts.items():
            if (host.node, host.index) == (node, index) and host.token != token and host.jobs:
                return gpu
        return None

    def heard(self, gpu: int) -> None:
        """Called when a host has reported. The time is written to the journal at most every 30 s."""
        now = self._state.next_time(self._clock())
        self.hosts[gpu].heard = now
        if now >= self._heard_due:
            recent = [each for each, host in self.hosts.items() if host.jobs and host.heard > now - _HEARD_S]
            self._heard_due = now + _HEARD_S
            if recent:
                self._record({"event": "heard", "gpus": recent})

    def host_lost(self, gpu: int, reason: str, *, crashed: bool, blamed: str | None = None) -> None:
        """The process is gone, and with it the jobs, which ran until it was heard last; `crashed` without its node, so
        that a job may be why: `blamed`, or any of them."""
        host = self.hosts[gpu]
        if host.up:
            steps = {name: job.steps for name, job in host.jobs.items()}
            lost = {"event": "lost", "gpu": gpu, "reason": reason, "crashed": crashed, "blamed": blamed, "steps": steps}
            self._record({**lost, "heard": host.heard})

    def left(
        self,
        name: str,
        attempt: int,
        state: str,
        error: str = "",
        steps: int | None = None,
        gpu: int | None = None,
        heard: float | None = None,
    ) -> None:
        """A job, or the rank of it on this device, has left its host, after `steps` if that is known: it is suspended,
        finished, failed or cancelled. It is known to have run until `heard`, by default until now."""
        job = self.jobs.get(name)
        if job is None or job.attempt != attempt or job.outcome:
            return
        if len(job.devices) == 1 or job.spec.gpus == 1:
            gpu = next(iter(job.devices), None)
        is_there = gpu in job.devices and gpu not in job.gone
        if is_there or (job.spec.gpus == 1 and state in ("finished", "failed")):  # else it was lost before
            steps = job.steps if steps is None else steps
            event = {"event": "left", "job": name, "attempt": attempt, "gpu": gpu, "state": state, "error": error}
            self._record({**event, "steps": steps, **({} if heard is None else {"heard": heard})})

    def progress(self, status: AttemptStatus, time: float, gpu: int | None = None) -> bool:
        """A job, or the rank of it on this device, runs on its host. `time` is that host's. Returns whether it should
        be there."""
        job = self.jobs.get(status.name)
        if job is None or job.attempt != status.attempt or not job.devices:
            return False
        if gpu is not None and gpu != job.devices[0]:  # the first rank speaks for all
            return gpu in job.devices and gpu not in job.gone
        if status.can_save and not job.can_save:
            self._record({"event": "saves", "job": status.name})
        if status.has_saved and job.is_suspect:
            self._record({"event": "saved", "job": status.name})
        job.steps, job.trouble = status.steps, status.trouble
        partner = self.partner(job)
        model = None if partner is None else partner.spec.model
        if any(each is not None and each.split > 1 for each in (job, partner)):
            job.step_times.restart()  # ratios are those of whole batches
            return True
        job.step_times.observe(time, status.steps - status.earlier_steps, model)
        measured = None if model is None else job.step_times.slowdown(model)
        if model is not None and measured is not None and job.step_times.is_news(model, measured):
            job.step_times.told[model] = measured
            self._record({"event": "ratio", "model": job.spec.model, "partner": model, "ratio": round(measured, 4)})
        return True

    def partner(self, job: QueuedJob) -> QueuedJob | None:
        beside = (other for gpu in job.devices for other in self.hosts[gpu].jobs.values())
        return next((other for other in beside if other is not job), None)

    def placed(self, gpu: int) -> list[QueuedJob]:
        return list(self.hosts[gpu].jobs.values())

    def spans(self) -> list[Span]:
        """The times that jobs have spent on devices, in the order of their ends."""
        now = self._clock()
        still = [(job.spec.name, gpu, job.began, now) for job in self._state.open.values() for gpu in job.devices]
        return [*self._state.spans, *still]

    def compact(self, *, after: int = _COMPACTED) -> bool:
        """Replaces a journal of so many events by the state, without the jobs that ended long ago. Returns whether it
        did. Goes on from the new journal as its readers will, so that they decide the same."""
        if self._journal.count < max(after, self._compacts_at) or self._state.origin is None:
            return False
        self._state.drop_ended(_KEPT)
        event, restored = snapshot.take(self._state), QueueState(self._settings)
        snapshot.restore(restored, json.loads(json.dumps(event)))
        for name, job in restored.jobs.items():
            job.step_times = self.jobs[name].step_times
        try:
            self._journal.replace(event)
        except OSError as error:
            self._compacts_at = self._journal.count + after // 10
            log.warning("the journal cannot be compacted: %s", error)
            return False
        self._state = restored
        return True

    # What is to be done

    def actions(self, reachable: Container[int] | None = None) -> list[Action]:
        """Returns what is to be done now, each action once, on devices whose hosts are `reachable`, by default all.
        Raises Superseded, also if there is nothing to do: clients would be refused for ever."""
        self._journal.check()
        if self._state.looks_again(self._clock()):
            self._record({"event": "look"})
        found: list[Action] = []
        for number in sorted(self._state.misplaced):
            job = self._state.misplaced.get(number)
            actions = [] if job is None else self._actions(job)
            if job is None or not (reachable is None or all(action.gpu in reachable for action in actions)):
                continue
            found += actions
            for action in actions:
                if action.what == "replace":
                    self.hosts[action.gpu].replacing = True
            if actions and actions[0].what != "replace":
                what = "start" if actions[0].what == "start" else "stop"
                gpus = [action.gpu for action in actions]
                self._record({"event": what, "job": job.spec.name, "attempt": actions[0].attempt, "gpus": gpus})
        return found

    def _actions(self, job: QueuedJob) -> list[Action]:
        """The same action for each rank, except `replace`, which only some ranks may need."""
        if job.devices:
            what = "cancel" if job.cancelled or job.has_lost_ranks else "suspend"
            if what == "suspend" and not job.can_save:
                return []  # other policies may have made the journal: its work would be lost
            return [Action(what, gpu, job.spec, job.attempt) for gpu in job.devices if gpu not in job.gone]
        hosts = [self.hosts[gpu] for gpu in job.wanted]
        if any(not host.up or host.replacing for host in hosts):
            return []
        if any(other.is_elsewhere for host in hosts for other in host.jobs.values()):
            return []
        other_envs = [gpu for gpu in job.wanted if self.hosts[gpu].env != job.env]
        if other_envs:
            free = not any(host.jobs for host in hosts if host.env != job.env)
            return [Action("replace", gpu, job.spec, job.attempt) for gpu in other_envs] if free else []
        start = functools.partial(Action, "start", split=job.wanted_split, predecessors=self._predecessors(job))
        return [start(gpu, job.spec, job.attempt + 1, rank) for rank, gpu in enumerate(job.wanted)]

    def _predecessors(self, job: QueuedJob) -> tuple[EndedJob, ...]:
        """The jobs for which this one has waited. They are known as long as it is open."""
        ended = [self.jobs[name] for name in job.spec.awaited]
        return tuple(
            EndedJob(
                each.spec.name,
                each.spec.priority,
                each.state,
                each.error,
                each.steps,
                each.ran,
                each.spec.outcome_of(each.attempt),
            )
            for each in ended
        )

    def rows(self) -> list[dict[str, Any]]:
        """The state of every job, in order of submission."""
        return list(map(self.row, self.jobs.values()))

    def row(self, job: QueuedJob) -> dict[str, Any]:
        partner = self.partner(job)
        model = None if partner is None else partner.spec.model
        until = job.ended if job.ended is not None else self._clock()
        return {
            "name": job.spec.name,
            "state": job.state,
            "target": job.spec.target,
            "priority": job.spec.priority,
            "device": " ".join(f"{self.hosts[gpu].node[:8]}:{self.hosts[gpu].index}" for gpu in job.devices) or None,
            "beside": None if partner is None else partner.spec.name,
            "after": [] if job.outcome else list(job.waits_for),
            "held": not (job.outcome or job.has_entered or job.waits_for),
            "deadline_s": job.spec.deadline,
            "deadline": job.deadline_state(until),
            "sub_batches": job.split,
            "steps": job.steps,
            "attempt": job.attempt,
            "submitted": job.submitted,
            "elapsed_s": until - job.submitted,
            "ran_s": job.ran + (until - job.began if job.devices else 0.0),
            "predicted_slowdown": None if model is None else self._state.learned.ratio(job.spec.model, model),
            "slowdown": None if model is None else job.step_times.slowdown(model),
            "error": job.trouble or job.error,
        }

    def _record(self, event: Event) -> None:
        stamped = {"time": self._state.next_time(self._clock()), **event}
        self._journal.append(stamped)
        try:
            self._state.apply(stamped)
        except BaseException:
            self._journal.retract()
            raise


def _key(spec: JobSpec) -> str:
    """Identifies what is submitted: an array, or a job of none."""
    return spec.array_id or spec.submission


def _told(spec: JobSpec, settings: QueueSettings) -> dict[str, Any]:
    """The job as the journal has it. Raises ValueError if an empty queue could not apply its submission, but for its
    predecessors."""
    try:
        job: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(spec), allow_nan=False))
        QueueState(settings).apply({"event": "submit", "time": 0.0, "job": {**job, "gpus": 1, "after": []}})
    except Exception as error:
        raise ValueError(f"job '{spec.name}': cannot be accepted: {error}") from None
    return job
