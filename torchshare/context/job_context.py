from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy

if TYPE_CHECKING:
    import torch

    from torchshare import _C

_NUMPY_SEEDS = 2**32


@dataclass(eq=False)
class JobContext:
    """What the parts of torchshare know of a job; `Job` is what its user sees of it."""

    name: str
    seed: int
    sub_batch: int | None
    """The default of `Job.batches`, in rows."""
    epochs_left: int | None
    """Passes over a loader that are to come; None where nobody said."""
    watch_cancel: Callable[[JobContext], None]
    """Has a cancellation reach the job where it runs no op."""
    largest_batch: int = 0
    """Rows."""
    warns_of_batch_norm: bool = True
    """When a layer first takes its statistics from a sub-batch."""
    thread: int = 0
    """Python's identifier of the job's thread, while it runs."""
    random: random.Random = field(init=False)
    numpy_random: numpy.random.RandomState = field(init=False)
    handle: _C.Job = field(init=False)
    """Set by Runtime.submit and, where it is quicker, by the job's own thread."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.numpy_random = numpy.random.RandomState(self.seed % _NUMPY_SEEDS)

    @property
    def device(self) -> torch.device | None:
        """Where its stream is; None on the CPU. In its own thread."""
        own = self.handle.device_generator
        return None if own is None else own.device
