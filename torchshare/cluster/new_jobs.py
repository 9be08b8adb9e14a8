"""Jobs that are submitted together: the queue accepts all of them or none."""

from __future__ import annotations

import dataclasses
import json
from collections import ChainMap
from collections.abc import Sequence
from typing import Any

from torchshare import _core
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.options import SubmitOptions
from torchshare.cluster.queue_state import QueueState
from torchshare.cluster.settings import QueueSettings
from torchshare.context.durations import duration_text
from torchshare.context.names import numbered
from torchshare.context.results import HOW_ENDED
from torchshare.runtime.declared import check


class NewJobs:
    """Jobs of which a queue in this state can accept all. Changes nothing."""

    def __init__(
        self, given: Sequence[tuple[JobSpec, bool]], state: QueueState, settings: QueueSettings, clock: float
    ) -> None:
        """A job with True gets a number if its name is taken. A job that waits for another one of them comes after it,
        and names it by its submission. The same submission twice is one job. Raises ValueError for a job that cannot be
        accepted."""
        self._state = state
        self._settings = settings
        self._names: dict[str, str] = {}  # by submission
        self.specs: dict[str, JobSpec] = {}
        """The jobs that the queue does not have yet, by the names that they get."""
        new: dict[str, JobSpec] = {}
        for spec, _ in given:
            spec.check()
            known = state.submissions.get(spec.submission)
            if known is None:
                new[spec.submission] = spec
            else:
                self._names[spec.submission] = known.spec.name
        names = self._choose_names(list(new.values()), {_key(spec) for spec, has_number in given if has_number})
        for spec in new.values():
            name = names[_key(spec)]
            own = f"{name}_{spec.index}" if spec.array else name
            named = dataclasses.replace(spec, name=own, array=name if spec.array else "")
            self.specs[own] = self._checked(named)
            self._names[spec.submission] = own
        self.told = [_told(spec, settings) for spec in self.specs.values()]
        """The same, as the journal has them."""
        self._check_deadlines(clock)
        self.names = [self._names[spec.submission] for spec, _ in given]
        """The names of all, in the order in which they were given."""

    def _choose_names(self, new: list[JobSpec], with_number: set[str]) -> dict[str, str]:
        """The names that jobs and arrays get, by `_key`. A name is that of one job or array; an array also takes those
        of its jobs. Raises ValueError for one that is taken."""
        indices: dict[str, list[int]] = {}
        wanted: dict[str, str] = {}
        for spec in new:
            indices.setdefault(_key(spec), []).extend([spec.index] if spec.array else [])
            wanted[_key(spec)] = spec.array or spec.name
        chosen: dict[str, str] = {}
        taken: set[str] = set()
        for key in sorted(wanted, key=lambda key: key in with_number):  # stable: first those that get no number
            for name in numbered(wanted[key]):
                own = [name, *(f"{name}_{index}" for index in indices[key])]
                refusal = next(filter(None, (self._refusal(each, taken) for each in own)), None)
                if refusal is None:
                    chosen[key] = name
                    taken.update(own)
                    break
                if key not in with_number:
                    raise ValueError(refusal)
        return chosen

    def _refusal(self, name: str, taken: set[str]) -> str | None:
        """Why a new job or array cannot have this name; None if it can."""
        if name in self._state.jobs:
            why = f"a job of that name is {self._state.jobs[name].state}"
        elif name in self._state.arrays:
            why = "there is an array of that name"
        elif name in taken:
            why = "one of that name is submitted with it"
        else:
            return None
        return f"job '{name}': job names must be unique; {why}"

    def _checked(self, spec: JobSpec) -> JobSpec:
        """The job with the names of those that it waits for. Its deadline has yet to be checked. Raises ValueError."""
        check(SubmitOptions, {"name": spec.name}, "submit", spec.name)
        devices = len(self._state.hosts)  # those too whose process is being started again
        if spec.gpus > max(1, devices):
            raise ValueError(
                f"job '{spec.name}': gpus must be at most {devices}, the cluster's devices, got {spec.gpus}"
            )
        if self._settings.memory and (spec.memory or 0) > self._settings.memory:
            limit = self._settings.memory
            raise ValueError(f"job '{spec.name}': memory must be at most {limit}, that of a device, got {spec.memory}")
        _core.priority_level(spec.priority)  # raises ValueError
        return spec.with_awaited({name: self._predecessors(spec, name, must) for name, must in spec.awaited.items()})

    def _predecessors(self, spec: JobSpec, given: str, must_finish: bool) -> list[str]:
        """The names of the jobs that this one waits for, all of an array; `given` may also be a submission. Raises
        ValueError."""
        if given in self._names:
            return [self._names[given]]
        submitted = self._state.submissions.get(given)
        found = [submitted] if submitted is not None else self._state.named(given)
        if not found:
            raise ValueError(f"job '{spec.name}': after names job '{given}', which the queue does not have")
        for job in found:
            if must_finish and job.outcome in ("failed", "cancelled"):
                raise ValueError(
                    f"job '{spec.name}': after names job '{job.spec.name}', which {HOW_ENDED[job.outcome]}"
                )
        return [job.spec.name for job in found]

    def _check_deadlines(self, clock: float) -> None:
        """Raises ValueError if the policy keeps deadlines and would miss one."""
        if all(spec.deadline is None for spec in self.specs.values()):
            return
        unended = ChainMap[str, Any](self._state.open, self.specs)
        arriving = [spec for spec in self.specs.values() if not any(name in unended for name in spec.awaited)]
        due = [spec for spec in arriving if spec.deadline is not None]
        miss = self._state.miss_with(due, clock, len(arriving) > 1)
        if miss is None:
            return
        spec, name, left = miss
        given = f"job '{spec.name}': deadline {duration_text(spec.deadline or 0.0)}"
        helps = "a later deadline, more devices or a submission when fewer jobs wait would help"
        if name == spec.name:
            raise ValueError(f"{given} would be missed: it is predicted to end after {duration_text(left)}; {helps}")
        limits = {each.name: each.deadline or 0.0 for each in due}
        if name in self._state.jobs:
            other = self._state.jobs[name]
            limits[name] = other.submitted + (other.spec.deadline or 0.0) - self._state.next_time(clock)
        raise ValueError(
            f"{given} would make job '{name}' miss its own: it would end {duration_text(left - limits[name])} late; "
            f"{helps}"
        )


def _key(spec: JobSpec) -> str:
    """Identifies what is submitted: an array, or a job of none."""
    return spec.array_id or spec.submission


def _told(spec: JobSpec, settings: QueueSettings) -> dict[str, Any]:
    """The job as the journal has it. Raises ValueError if an empty queue could not apply its submission, but for its
    predecessors."""
    try:
        job: dict[str, Any] = json.loads(json.dumps(vars(spec), allow_nan=False))
        QueueState(settings).apply({"event": "submit", "time": 0.0, "job": {**job, "gpus": 1, "after": []}})
    except Exception as error:
        raise ValueError(f"job '{spec.name}': cannot be accepted: {error}") from None
    return job
