from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from torchshare.context.gradient_weights import GradientWeights

log = logging.getLogger("torchshare")


class Part:
    """A sub-batch that the body of a plain loop runs on."""

    def __init__(self, number: int, parts: int, weight: float) -> None:
        self._place = number + 1, parts
        self.is_first = number == 0
        self.is_last = number == parts - 1
        self.is_split = parts > 1 or weight != 1.0
        self.weight = weight
        """What gradients are multiplied by: they sum to those of the batch."""
        self.has_stepped = False
        self.has_gradients = False
        """A parameter has got some in it."""

    def __str__(self) -> str:
        return "sub-batch {} of {}".format(*self._place)


class Accumulation:
    """Where a job's loops are in batches that are split for unmodified loops, and the optimizers that wait for their
    ends.

    A loop's body runs once per sub-batch, so what it does once per batch (step, schedule, clip, zero the gradients)
    must be left out for all sub-batches but one. A body may hold another loop, such as an evaluation: what it does is
    of the innermost one.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.weights = GradientWeights(job, self.weighted, self.has_begun)
        self._open: list[Part] = []  # those whose bodies run, the innermost last
        self._outside = Part(0, 1, 1.0)  # of all bodies
        self._warned: set[str] = set()
        self._fetches = 0  # loops that wait for their loader

    @property
    def _part(self) -> Part:
        return self._open[-1] if self._open else self._outside

    @property
    def is_last(self) -> bool:
        return self._part.is_last

    def has_begun(self) -> bool:
        """Whether a sub-batch of a split batch may have left gradients."""
        part = self._part
        return part.is_split and (part.has_gradients or not part.is_first)

    @contextlib.contextmanager
    def inside(self, part: Part) -> Iterator[None]:
        """Around the body. Raises RuntimeError if it cannot be told which loop's body runs."""
        if part.is_split and self._fetches:
            raise RuntimeError(
                f"job '{self._job}': torchshare.batches must split a loader's batches once, got a loader that yields "
                "what torchshare.batches has split"
            )
        self._open.append(part)
        try:
            yield
        except GeneratorExit as left:
            if not part.is_last and left.__context__ is None:  # otherwise an exception ends the loop
                self._warn(f"a loop over torchshare.batches left a batch after {part}: it did not train on the rest")
            raise
        else:
            self._check_innermost(part)
        finally:
            if part in self._open:
                self._open.remove(part)

    def _check_innermost(self, part: Part) -> None:
        innermost = self._part
        if innermost is not part and (part.is_split or innermost.is_split):
            raise RuntimeError(
                f"job '{self._job}': torchshare.batches must split one loader at a time, got two whose batches take "
                "turns, as in zip(); use job.batches for them"
            )

    @contextlib.contextmanager
    def fetching(self) -> Iterator[None]:
        """While a loop waits for its loader."""
        self._fetches += 1
        try:
            yield
        finally:
            self._fetches -= 1

    def weigh(self) -> None:
        """Called before a batch: weights parameters that are new."""
        for optimizer in self.optimizers:
            self.weights.add(optimizer)

    def check(self, parts: list[Part]) -> None:
        """Called after a batch, with its sub-batches."""
        late = [part for part in parts if part.has_gradients]
        if late and not parts[0].has_gradients:
            self._warn(
                f"{parts[0]} had no backward pass, but {late[0]} had one: gradients are weighted wrongly if the loop "
                "fetches batches ahead; wrap what fetches them in torchshare.batches"
            )

    def _warn(self, what: str) -> None:
        """Once, of each kind."""
        kind = what.split()[-1]
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("job '%s': %s", self._job, what)

    def weighted(self, gradient: Tensor) -> Tensor:
        """Called with each gradient of an optimizer's parameter."""
        part = self._part
        part.has_gradients = True
        return gradient if part.weight == 1.0 else gradient * part.weight

    def step(self) -> bool:
        """Called for a step of an optimizer. Returns whether it is to be done."""
        part = self._part
        part.has_stepped = True
        return part.is_last

    def may_zero(self) -> bool:
        """Whether gradients may be zeroed now: before the first backward of the batch, or after its step."""
        part = self._part
        return part.is_last if part.has_stepped else part.is_first

    def end_job(self) -> None:
        """Optimizers and parameters that outlive the job are as before."""
        self._open.clear()
        self.weights.remove()
