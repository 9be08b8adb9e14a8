"""The scheduler's side of a host: what is known of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_MAX_REASON = 300  # characters


@dataclass(eq=False)
class RemoteHost:
    node: str
    index: int
    actor: Any
    replaced_for: str = ""
    """The job whose environment it was started with."""
    gpu: int | None = None
    token: str = ""
    status: Any = None
    """The call for a status that has not been answered; None if there is no such call."""
    asked: float = 0.0
    forget: list[tuple[str, int]] = field(default_factory=list)
    strays: dict[tuple[str, int], float] = field(default_factory=dict)
    """When each job that should not run here was seen first."""
    blamed: str = ""
    """The job that does not stop, for which the process is being ended."""
    niceness: int = 0
    error: str = ""
    """Why it is dead."""

    @property
    def note(self) -> str:
        """What the user may want to change about this host; empty if nothing."""
        if self.niceness <= 0:
            return ""
        return f"niceness {self.niceness}; Ray's own is 15: start it with RAY_worker_niceness=0"

    @property
    def is_reachable(self) -> bool:
        return bool(self.token) and self.gpu is not None and not self.blamed


@dataclass(frozen=True)
class FailedStart:
    """The last start of a host that ended before its first answer."""

    reason: str
    wait: float
    """Seconds until it is started again."""
    due: float


class HostDied(Exception):
    """The process of a host has ended; the message says why."""


class HostUnavailable(Exception):
    """A host cannot be reached for now."""


def last_line(text: str) -> str:
    """The reason in Ray's message, without its advice, and without the module of an exception."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = lines[-1].partition(" Some common causes")[0] if lines else ""
    return re.sub(r"^(?:\w+\.)+\w+: ", "", reason)[:_MAX_REASON]
