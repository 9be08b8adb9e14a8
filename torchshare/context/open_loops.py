from __future__ import annotations

from dataclasses import dataclass, field


class OpenBatch:
    """A batch in the body of a loop: a step of the job, if it trains."""

    is_done = False
    """Its rows have been through the body, as far as can be seen from here."""


@dataclass
class OpenLoops:
    """What a job's loops have begun and not ended; see step_loop."""

    batches: list[OpenBatch] = field(default_factory=list)
    inputs: int = 0
    """Waits for input, one inside the other."""
    sub_batches: int = 0
    """Sub-batches that have begun so far."""
    is_compiled: bool = False
    """Whether the latest batch was trained by a compiled step, which leaves no gradients."""
