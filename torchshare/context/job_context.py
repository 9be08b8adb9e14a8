from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy

from torchshare.context.accumulation import Accumulation
from torchshare.context.loop import Loop
from torchshare.context.step_counter import StepCounter
from torchshare.context.tracked import Tracked

if TYPE_CHECKING:
    import torch

    from torchshare import _C

_NUMPY_SEEDS = 2**32


@dataclass(eq=False)
class JobContext:
    """The state of a job that torchshare's packages share. Users see `Job`."""

    name: str
    seed: int
    sub_batch: int | None
    """Default of `Job.batches`, in rows."""
    epochs_left: int | None
    """Remaining passes over the loader; None if not declared."""
    runtime: int
    """The number of its runtime among those of this process; the same on all ranks."""
    watch_cancel: Callable[[JobContext], None]
    """Delivers a cancellation to the job even if it runs no op."""
    tell_ranks: Callable[[JobContext, str, str], None]
    """Tells the job's other ranks that it is "ended", and how, or that they too must "suspend" or "resume" it."""
    largest_batch: int = 0
    """Rows of the largest batch so far."""
    warns_of_batch_norm: bool = True
    """Whether to warn when a layer first computes its statistics over a sub-batch."""
    is_ending: bool = False
    """Whether it is a script that was interrupted: it is not unwound again at its next batch or sleep."""
    has_stepped: bool = False
    """Whether an optimizer has made a step."""
    uses_batches: bool = False
    """Whether its loop counts the steps; otherwise its optimizer's steps are counted."""
    step_counter: StepCounter = field(default_factory=StepCounter)
    accumulation: Accumulation = field(default_factory=Accumulation)
    tracked: Tracked = field(default_factory=Tracked)
    loop: Loop = field(default_factory=Loop)
    """Its checkpoints, if it writes any."""
    data_parallel: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """Its models that average gradients over ranks."""
    global_hooks: list[Any] = field(default_factory=list)
    """Handles of the hooks on all modules or optimizers that it has registered."""
    thread: int = 0
    """`threading.get_ident()` of the job's thread, while it runs."""
    random: random.Random = field(init=False)
    numpy_random: numpy.random.RandomState = field(init=False)
    handle: _C.Job = field(init=False)
    """Set by Runtime.submit or by the job's own thread, whichever comes first."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.numpy_random = numpy.random.RandomState(self.seed % _NUMPY_SEEDS)

    @property
    def device(self) -> torch.device | None:
        """The device of the job's stream; None on the CPU. Called in the job's thread."""
        own = self.handle.device_generator
        return None if own is None else own.device
