"""The queue of a cluster: what jobs there are, what runs where, and what is to be done next."""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable, Container, Sequence
from typing import Any

from torchshare.cluster import snapshot
from torchshare.cluster.host_status import AttemptStatus
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.journal import Event, Journal
from torchshare.cluster.new_jobs import NewJobs
from torchshare.cluster.queue_state import QueueState
from torchshare.cluster.queued_job import Action, EndedJob, HostRecord, QueuedJob, Span
from torchshare.cluster.settings import QueueSettings

log = logging.getLogger("torchshare")

_COMPACTED = 10_000  # events in a journal
_KEPT = 1000  # jobs that have ended, in a journal that was compacted
_HEARD_S = 30.0  # how often the journal says that hosts with jobs have reported


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
        """Accepts all of the jobs, or none. Returns their names; see NewJobs."""
        jobs = self.check(given)
        self.add(jobs)
        return jobs.names

    def check(self, given: Sequence[tuple[JobSpec, bool]]) -> NewJobs:
        """Raises ValueError unless all of the jobs can be accepted; see NewJobs."""
        return NewJobs(given, self._state, self._settings, self._clock())

    def add(self, jobs: NewJobs) -> None:
        """Accepts jobs that were checked just before."""
        if len(jobs.told) == 1:
            self._record({"event": "submit", "job": jobs.told[0]})
        elif jobs.told:
            self._record({"event": "submit_all", "jobs": jobs.told})

    def cancel(self, name: str) -> list[QueuedJob]:
        """Cancels a job, or all of an array. Returns them. Raises ValueError for an unknown name."""
        jobs = self._state.named(name) or [self.find(name)]
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
            "held": job.is_held,
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
