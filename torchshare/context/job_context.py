from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchshare.context.accumulation import Accumulation
from torchshare.context.host_random import HostRandom
from torchshare.context.loop import Loop
from torchshare.context.open_loops import OpenLoops
from torchshare.context.rank import Rank, this_rank
from torchshare.context.step_counter import StepCounter
from torchshare.context.sub_batch_rows import SubBatchRows
from torchshare.context.tracked import Tracked

if TYPE_CHECKING:
    import random

    import numpy
    import torch

    from torchshare import _C


_LONGEST_OP_S = 10.0
_SEEN_AFTER_S = 0.001  # another thread has seen what was written so long ago


@dataclass(eq=False)
class JobContext:
    """The state of a job that torchshare's packages share. Users see `Job`."""

    name: str
    seed: int
    sub_batch: int | None
    """Default of `Job.batches`, in rows."""
    epochs_left: int | None
    """Remaining passes over the loader; None if not declared."""
    runtime: str
    """Identifies its runtime: unique in this process; the same on all ranks of a runtime that runs on several."""
    watch_cancel: Callable[[JobContext], None]
    """Delivers a cancellation to the job even if it runs no op."""
    tell_ranks: Callable[[JobContext, str, str], None]
    """Tells the job's other ranks that it is "ended", and how, or that they too must "suspend" or "resume" it."""
    park_spilled: Callable[[JobContext], None]
    """Suspends the job with its tracked tensors off the device, until it is resumed."""
    slo: str | None = None
    """What it promises about the latencies of its requests."""
    warned_of_deadlines: bool = False
    """Whether it was told that its deadlines cannot be met."""
    rank: Rank = field(default_factory=this_rank)
    shared_patches: bool = False
    """Whether it may replace, for all jobs, what cannot be its own."""
    environ: dict[bytes, bytes] | None = None
    """Its environment, if that is not the process's."""
    has_own_ranks: bool = False
    """Whether its environment says that it has ranks which are not those of the process."""
    store: Any = None
    """If it has ranks of its own: where they meet."""
    on_cpu: bool = False
    """Whether its runtime's device is the CPU."""
    on_disagree: str = "error"
    """What happens if it wants another value of a setting of torch than a higher job; see the option."""
    own_settings: dict[Any, Any] = field(default_factory=dict)
    """Settings of torch that are its own: see isolation.own_settings."""
    largest_batch: int = 0
    """Rows of the largest batch so far."""
    keeps_promises: bool = True
    """Whether lower jobs are limited by what it promises about its requests. Not while it is measured beside one."""
    warns_of_split: bool = True
    """Whether its next split batch is searched for what splitting changes."""
    is_unwound: bool = False
    """Whether its cancellation was raised in it; it may have caught it."""
    is_ending: bool = False
    """Whether it is a script that was interrupted: it is not unwound again at its next batch or sleep."""
    has_stepped: bool = False
    """Whether an optimizer has made a step, or is about to."""
    optimizers: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """Optimizers that it has made: with one it trains, and what it does before its first step is no step."""
    uses_batches: bool = False
    """Whether it has a loop over batches of `Job.batches` or `torchshare.batches`, or a call of `Job.fit`."""
    resplit: bool = True
    """Whether batches that run out of memory are repeated in smaller sub-batches."""
    spills: bool = False
    """Whether it is to be suspended between sub-batches, with its tracked tensors moved off the device."""
    moves: int = 0
    """How often they were: their addresses differ since."""
    rows_at_once: SubBatchRows = field(default_factory=lambda: SubBatchRows(0))
    split: int = 1
    """Sub-batches of what it would run at once: a cluster's queue has put it beside another job. Does not change while
    its body runs."""
    retry: Any = None
    """How it repeats batches: a training.retry.Retry, from the first batch that it may have to repeat."""
    serving: Any = None
    """The requests that it answers: a serving.serving.Serving, from its first call of `Job.requests` on."""
    step_counter: StepCounter = field(default_factory=StepCounter)
    open_loops: OpenLoops = field(default_factory=OpenLoops)
    accumulation: Accumulation = field(init=False)
    tracked: Tracked = field(default_factory=Tracked)
    loop: Loop = field(default_factory=Loop)
    """Its checkpoints, if it writes any."""
    data_parallel: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """Its models that average gradients over ranks."""
    global_hooks: list[Any] = field(default_factory=list)
    """Handles of the hooks on all modules that it has registered."""
    hook_tables: dict[str, dict[int, Callable[..., Any]]] = field(default_factory=dict)
    """Its hooks on all optimizers and on registrations in modules, by the name of torch's table; see hooks.py."""
    thread: int = 0
    """`threading.get_ident()` of the job's thread, while it runs."""
    host_random: HostRandom = field(init=False)
    _parking: threading.RLock = field(default_factory=threading.RLock)
    """Guards `spills` and the job's suspension. A signal may come while it is held."""
    _is_suspended: bool = False
    """Set by `suspend` and `park`."""
    _handlers: int = 0
    """How many of its signal handlers run."""
    handle: _C.Job = field(init=False)
    """Set by Runtime.submit or by the job's own thread, whichever comes first."""

    def __post_init__(self) -> None:
        self.host_random = HostRandom(self.seed)
        self.accumulation = Accumulation(self.name)

    def release(self) -> None:
        """Called at the job's end: drops what its function has used, as long as the runtime has other jobs."""
        self.tracked, self.retry, self.loop = Tracked(), None, Loop()

    def leave_out_passes(self, count: int) -> None:
        """Called when an earlier run has completed `count` of the passes that the job declared."""
        if self.epochs_left is not None:
            self.epochs_left = max(0, self.epochs_left - count)

    def suspend(self, spill: bool) -> None:
        """See Job.suspend; on this rank."""
        with self._parking:
            if spill:
                self.spills = True
            else:
                self._is_suspended = True
                self.handle.suspend()

    def resume(self) -> None:
        """See Job.resume; on this rank."""
        with self._parking:
            self.spills = self._is_suspended = False
            if not self._handlers:
                self.handle.resume()

    def park(self) -> None:
        """Called by the job itself once its memory is off the device: suspends it unless it has been resumed."""
        with self._parking:
            if self.spills:
                self._is_suspended = True
                self.handle.suspend()

    def has_optimizers(self) -> bool:
        """Whether it is known to train, before its first step."""
        tracked = self.tracked.objects.values()
        known = self.optimizers or self.accumulation.optimizers
        return bool(known) or any(hasattr(value, "param_groups") for value in tracked)

    @contextlib.contextmanager
    def outside_ops(self) -> Iterator[None]:
        """The job enters no op meanwhile. Waits for the end of the one that it is in, 10 s at most."""
        with self._parking:
            self._handlers += 1
            self.handle.suspend()
        try:
            wait_outside_ops([self])
            yield
        finally:
            with self._parking:
                self._handlers -= 1
                if not self._handlers and not self._is_suspended:
                    self.handle.resume()

    def ops_begun(self) -> int:
        """How many ops its threads have begun."""
        return self.handle.ops_begun if hasattr(self, "handle") else 0

    @property
    def random(self) -> random.Random:
        return self.host_random.python

    @property
    def numpy_random(self) -> numpy.random.RandomState:
        return self.host_random.numpy

    @property
    def device(self) -> torch.device | None:
        """The device of the job's stream; None on the CPU. Called in the job's thread."""
        own = self.handle.device_generator
        return None if own is None else own.device


def wait_outside_ops(jobs: list[JobContext]) -> None:
    """Returns once jobs that enter no more ops have ended theirs, after 10 s at the latest."""
    until = time.monotonic() + _LONGEST_OP_S
    time.sleep(_SEEN_AFTER_S)
    while any(job.handle.is_in_op for job in jobs) and time.monotonic() < until:
        time.sleep(_SEEN_AFTER_S)
