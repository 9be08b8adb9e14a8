from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchshare import _core
from torchshare.cluster.options import SubmitOptions
from torchshare.runtime.declared import check


@dataclass(frozen=True)
class JobSpec:
    """A job as it was submitted."""

    name: str
    submission: str
    """A unique id: the same submission twice, by a client that got no answer, is one job."""
    target: str
    """A script with its arguments, or a function of a file or module; for a pickled function, its name."""
    folder: str
    """The working folder of scripts; relative paths of targets begin there."""
    model: str
    """Jobs of one model have the same interference ratios and, if not said otherwise, durations."""
    pickled: bool = False
    gpus: int = 1
    priority: str = "secondary"
    memory: int | None = None
    """Bytes on its device."""
    duration: float | None = None
    """Estimated seconds alone on its devices."""
    deadline: float | None = None
    """Seconds after its submission by which it must have finished."""
    after: list[str] = field(default_factory=list)
    """The jobs that it waits for, each as "any:NAME" or "ok:NAME"."""
    array: str = ""
    """The name of the array that it belongs to, if it does."""
    array_id: str = ""
    """A unique id of that."""
    index: int = 0
    """Its index there."""
    at_once: int = 0
    """Maximum number of the array's jobs that run at the same time; 0: any number."""
    sub_batches: int = 1
    """The maximum number of sub-batches while it shares; 1: its batches are never split."""
    fixed_memory: float = 0.3
    """Part of `memory` that does not become smaller with the sub-batches."""
    fixed_time: float = 0.05
    """Cost of each further sub-batch / step time."""
    env: dict[str, Any] = field(default_factory=dict)
    """Ray's runtime_env."""
    ratios: dict[str, list[float]] = field(default_factory=dict)
    """Interference ratios of the profile, by the partner's model: this job's, and the partner's."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of Runtime.submit."""

    def check(self) -> None:
        """Raises ValueError unless all readers of a journal can take it."""
        for each in ("name", "submission", "target", "folder", "model", "array", "array_id"):
            if not isinstance(getattr(self, each), str):
                raise ValueError(f"job '{self.name}': {each} must be a string, got {getattr(self, each)!r}")
        numbers = (self.index, self.at_once)
        if any(type(each) is not int or each < 0 for each in numbers) or (self.at_once and not self.array_id):
            raise ValueError(f"job '{self.name}': index and at_once must be numbers of an array, got {numbers!r}")
        if self.at_once and self.deadline is not None:
            limit = f"if only {self.at_once} of its array run at once"
            raise ValueError(f"job '{self.array}': deadline must not be given {limit}, got {self.deadline:g} s")
        if not isinstance(self.after, list):
            raise ValueError(f"job '{self.name}': after must be a list of jobs' names, got {self.after!r}")
        checked = ("gpus", "priority", "memory", "duration", "deadline", "after", "sub_batches", "env")
        check(SubmitOptions, {each: getattr(self, each) for each in checked}, "submit", self.name)

    @property
    def awaited(self) -> dict[str, bool]:
        """The jobs that it waits for, and whether each must finish. Raises ValueError."""
        found: dict[str, bool] = {}
        for text in self.after:
            try:
                each = _core.Predecessor(text)
            except ValueError as error:
                raise ValueError(f"job '{self.name}': {error}") from None
            found[each.name] = found.get(each.name, False) or each.must_finish
        return found

    def with_awaited(self, names: Mapping[str, Sequence[str]]) -> JobSpec:
        """The same job, which waits for others by other names: those of all jobs that a name stands for."""
        after = [
            f"{'ok' if must else 'any'}:{each}"
            for name, must in self.awaited.items()
            for each in names.get(name, [name])
        ]
        return replace(self, after=after)

    def memory_in(self, sub_batches: int) -> int | None:
        """Bytes on its device while its batches are split so."""
        if self.memory is None or sub_batches == 1:
            return self.memory
        return math.ceil(self.memory * (self.fixed_memory + (1 - self.fixed_memory) / sub_batches))

    def outcome_of(self, attempt: int, rank: int = 0) -> str:
        """The name of the outcome. Ranks have one each; the job's is the first rank's, of the last attempt."""
        return self.submission if self.gpus == 1 else f"{self.submission}.{attempt}.{rank}"
