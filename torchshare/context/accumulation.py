from __future__ import annotations

import weakref
from typing import Any


class Accumulation:
    """Where a job's loop is in a batch that is split for an unmodified loop, and the optimizers that wait for its end.

    The loop's body runs once per sub-batch, so what it does once per batch (step, schedule, clip, zero the gradients)
    must be left out for all sub-batches but one.
    """

    def __init__(self) -> None:
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.between_batches()

    def between_batches(self) -> None:
        self.begin_sub_batch(0, is_last=True, weight=1.0)

    def begin_sub_batch(self, index: int, is_last: bool, weight: float) -> None:
        self._is_first = index == 0
        self._has_stepped = False
        self.is_last = is_last
        self.weight = weight
        """What gradients are multiplied by: they sum to those of the batch."""

    def step(self) -> bool:
        """Called for a step of an optimizer. Returns whether it is to be done."""
        self._has_stepped = True
        return self.is_last

    def may_zero(self) -> bool:
        """Whether gradients may be zeroed now: before the first backward of the batch, or after its step."""
        return self.is_last if self._has_stepped else self._is_first
