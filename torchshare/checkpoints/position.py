from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Position:
    """The position of a job's loop."""

    steps: int = 0
    passes: list[int] = field(default_factory=list)
    """Batches of each pass over the loader; the last pass may not be complete."""
    epoch_loops: int = 0
    """Loops over Job.epochs that have ended."""
    epoch: int | None = None
    """The current epoch of the loop that has not ended."""
    first_pass: int = 0
    """The first pass of that epoch; without one, the first pass after the last loop."""
