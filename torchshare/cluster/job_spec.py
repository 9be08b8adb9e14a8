from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
    """Seconds alone, estimated."""
    env: dict[str, Any] = field(default_factory=dict)
    """Ray's runtime_env."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of Runtime.submit."""
