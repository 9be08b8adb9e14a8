"""The queue of a cluster: what jobs there are, what runs where, and what is to be done next."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Container
from typing import Any

from torchshare import _core
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.journal import Event, Journal
from torchshare.cluster.queue_state import QueueSettings, QueueState
from torchshare.cluster.queued_job import Action, HostRecord, QueuedJob, Span
from torchshare.context.names import free_name


class JobQueue:
    """See Note [Events]. Not thread-safe."""

    def __init__(
        self, journal: Journal, settings: QueueSettings | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """Raises ValueError for settings that are none, or a journal that does not fit them."""
        self._settings = settings or QueueSettings()
        self._journal = journal
        self._clock = clock
        self._state = QueueState(self._settings)
        for number, event in enumerate(journal.events, 1):
            try:
                self._state.apply(event)
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"journal, event {number} ({event['event']}): cannot be applied: {error!r}") from None

    @property
    def jobs(self) -> dict[str, QueuedJob]:
        return self._state.jobs

    @property
    def hosts(self) -> dict[int, HostRecord]:
        return self._state.hosts

    # What happens

    def submit(self, spec: JobSpec, number: bool = False) -> str:
        """Returns the job's name; with `number`, it gets one if it is taken. The same submission twice is one job.
        Raises ValueError for a job that cannot be accepted."""
        same = next((job for job in self.jobs.values() if job.spec.submission == spec.submission), None)
        if same is not None:
            return same.spec.name
        if number:
            spec = dataclasses.replace(spec, name=free_name(spec.name, self.jobs))
        known = self.jobs.get(spec.name)
        if known is not None:
            raise ValueError(f"job '{spec.name}': job names must be unique; a job of that name is {known.state}")
        devices = sum(host.up for host in self.hosts.values())
        if spec.gpus > max(1, devices):
            raise ValueError(
                f"job '{spec.name}': gpus must be at most {devices}, the cluster's devices; got {spec.gpus}"
            )
        if spec.gpus != 1:
            raise ValueError(
                f"job '{spec.name}': gpus must be 1, jobs of several are not possible yet; got {spec.gpus}"
            )
        if self._settings.memory and (spec.memory or 0) > self._settings.memory:
            limit = self._settings.memory
            raise ValueError(f"job '{spec.name}': memory must be at most {limit}, that of a device; got {spec.memory}")
        _core.priority_level(spec.priority)  # raises ValueError
        self._record({"event": "submit", "job": dataclasses.asdict(spec)})
        return spec.name

    def cancel(self, name: str) -> None:
        job = self.find(name)
        if not job.outcome and not job.cancelled:
            self._record({"event": "cancel", "job": name})

    def refuse(self, name: str, error: str) -> None:
        """A job cannot be started: it has failed."""
        job = self.jobs[name]
        if not job.outcome and job.place is None:
            self._record({"event": "refuse", "job": name, "error": error})

    def find(self, name: str) -> QueuedJob:
        """Raises ValueError for an unknown name."""
        if name not in self.jobs:
            raise ValueError(f"job '{name}': there is no such job")
        return self.jobs[name]

    def host_up(self, node: str, index: int, token: str, env: str = "{}") -> int:
        """A host has reported for the first time. Returns the number of its device."""
        same = [gpu for gpu, host in self.hosts.items() if (host.node, host.index) == (node, index)]
        gone = [gpu for gpu, host in self.hosts.items() if not host.up]
        gpu = next(iter([*same, *gone]), len(self.hosts))
        known = self.hosts.get(gpu)
        if known is not None and known.up and known.token != token and known.jobs:
            self.host_lost(gpu, "its process was replaced", crashed=True)
        if known is None or not known.up or known.token != token:
            self._record({"event": "host", "gpu": gpu, "node": node, "index": index, "token": token, "env": env})
        return gpu

    def host_lost(self, gpu: int, reason: str, *, crashed: bool) -> None:
        """The process is gone, and with it the jobs; `crashed` without its node, so that a job may be why."""
        if self.hosts[gpu].up:
            self._record({"event": "lost", "gpu": gpu, "reason": reason, "crashed": crashed})

    def left(self, name: str, attempt: int, state: str, error: str = "", steps: int | None = None) -> None:
        """A job has left its host, after `steps` if that is known: it is suspended, finished, failed or cancelled."""
        job = self.jobs.get(name)
        if job is None or job.attempt != attempt or job.outcome:
            return
        if job.place is not None or state in ("finished", "failed"):  # else it was lost before
            steps = job.steps if steps is None else steps
            event = {"event": "left", "job": name, "attempt": attempt, "state": state, "error": error, "steps": steps}
            self._record(event)

    def progress(self, name: str, attempt: int, time: float, steps: int, can_save: bool) -> bool:
        """A job on its host. `time` is that host's. Returns whether it should be there."""
        job = self.jobs.get(name)
        if job is None or job.attempt != attempt or job.place is None:
            return False
        if can_save and not job.can_save:
            self._record({"event": "saves", "job": name})
        job.steps = steps
        partner = self.partner(job)
        model = None if partner is None else partner.spec.model
        job.step_times.observe(time, steps, model)
        measured = None if model is None else job.step_times.slowdown(model)
        if model is not None and measured is not None and job.step_times.is_news(model, measured):
            job.step_times.told[model] = measured
            self._record({"event": "ratio", "model": job.spec.model, "partner": model, "ratio": round(measured, 4)})
        return True

    def partner(self, job: QueuedJob) -> QueuedJob | None:
        beside = self.hosts[job.place].jobs.values() if job.place is not None else ()
        return next((other for other in beside if other is not job), None)

    def placed(self, gpu: int) -> list[QueuedJob]:
        return list(self.hosts[gpu].jobs.values())

    def spans(self) -> list[Span]:
        """Where each job has been, and is, in order of the ends."""
        now = self._clock()
        still = [(job.spec.name, job.place, job.began, now) for job in self.jobs.values() if job.place is not None]
        return [*self._state.spans, *still]

    # What is to be done

    def actions(self, reachable: Container[int] | None = None) -> list[Action]:
        """What is to be done now, each once. Only on devices whose hosts are `reachable`, by default all. Raises
        Superseded, also if there is nothing to do: clients would be refused for ever."""
        self._journal.check()
        if self._state.looks_again(self._clock()):
            self._record({"event": "look"})
        found: list[Action] = []
        for job in self._state.open.values():
            action = self._action(job)
            if action is None or not (reachable is None or action.gpu in reachable):
                continue
            found.append(action)
            if action.what == "replace":
                self.hosts[action.gpu].replacing = True
            else:
                what = "start" if action.what == "start" else "stop"
                self._record({"event": what, "job": job.spec.name, "attempt": action.attempt, "gpu": action.gpu})
        return found

    def _action(self, job: QueuedJob) -> Action | None:
        if job.place is not None:
            if job.stopping or job.wanted == job.place:
                return None
            return Action("cancel" if job.cancelled else "suspend", job.place, job.spec, job.attempt)
        if job.wanted is None:
            return None
        host = self.hosts[job.wanted]
        if not host.up or host.replacing or any(other.wanted != job.wanted for other in host.jobs.values()):
            return None
        if host.env != job.env:
            return None if host.jobs else Action("replace", job.wanted, job.spec, job.attempt)
        return Action("start", job.wanted, job.spec, job.attempt + 1)

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
            "device": None if job.place is None else f"{self.hosts[job.place].node[:8]}:{self.hosts[job.place].index}",
            "beside": None if partner is None else partner.spec.name,
            "steps": job.steps,
            "attempt": job.attempt,
            "submitted": job.submitted,
            "elapsed_s": until - job.submitted,
            "ran_s": job.ran + (until - job.began if job.place is not None else 0.0),
            "predicted_slowdown": None if model is None else self._state.learned.ratio(job.spec.model, model),
            "slowdown": None if model is None else job.step_times.slowdown(model),
            "error": job.error,
        }

    def _record(self, event: Event) -> None:
        stamped = {"time": self._state.next_time(self._clock()), **event}
        self._journal.append(stamped)
        self._state.apply(stamped)
