from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_NUMBERS: dict[str, tuple[Any, int, int]] = {  # type, least, most
    "gpus": (int, 1, 2**31 - 1),
    "memory": (int, 0, 2**63 - 1),
    "duration": ((int, float), 0, 10**12),  # beyond, times are no longer exact
}


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
    env: dict[str, Any] = field(default_factory=dict)
    """Ray's runtime_env."""
    ratios: dict[str, list[float]] = field(default_factory=dict)
    """Interference ratios of the profile, by the partner's model: this job's, and the partner's."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of Runtime.submit."""

    def check(self) -> None:
        """Raises ValueError unless all readers of a journal can take it."""
        for each in ("name", "submission", "target", "folder", "model", "priority"):
            if not isinstance(getattr(self, each), str):
                raise ValueError(f"job '{self.name}': {each} must be a string, got {getattr(self, each)!r}")
        if not isinstance(self.env, dict) or not all(isinstance(key, str) for key in self.env):
            raise ValueError(f"job '{self.name}': env must be a dict with strings as keys, got {self.env!r}")
        for each, (kind, least, most) in _NUMBERS.items():
            value = getattr(self, each)
            is_given = value is not None or each == "gpus"
            if is_given and not (isinstance(value, kind) and least <= value <= most):
                raise ValueError(f"job '{self.name}': {each} must be a number from {least} to {most}, got {value!r}")

    def outcome_of(self, attempt: int, rank: int = 0) -> str:
        """The name of the outcome. Ranks have one each; the job's is the first rank's, of the last attempt."""
        return self.submission if self.gpus == 1 else f"{self.submission}.{attempt}.{rank}"
