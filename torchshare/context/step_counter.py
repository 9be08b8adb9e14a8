from __future__ import annotations

import weakref
from collections.abc import Callable


class StepCounter:
    """Decides what a job's steps are.

    Of loops over `Job.batches` or `torchshare.batches`: the batches that train, with a backward pass or an optimizer's
    step. Those of a validation are no steps. Of a job that only evaluates, all are.
    Of other loops: the steps of an optimizer. Where a job has several, such as a GAN: those of the first, until another
    one steps twice in a row.
    """

    def __init__(self) -> None:
        self._counted: Callable[[], object] = lambda: None
        self._latest: Callable[[], object] = lambda: None
        self._trained = 0
        self._trained_before = 0  # at the end of the last batch that was a step

    def counts(self, optimizer: object) -> bool:
        """Called after each step of an optimizer in another loop."""
        if self._counted() is None or self._latest() is optimizer:
            self._counted = weakref.ref(optimizer)
        self._latest = weakref.ref(optimizer)
        return self._counted() is optimizer

    def trained(self) -> None:
        """Called after each backward pass and each step of an optimizer."""
        self._trained += 1

    def begin_batch(self) -> int:
        """Returns what `is_step` is to be given at the end of the batch."""
        return self._trained

    def is_step(self, begun: int, has_optimizers: bool) -> bool:
        """Whether a batch that has ended is a step. Of two loops, one in the body of the other: the inner one's."""
        if not self._trained and not has_optimizers:
            return True
        if self._trained <= max(begun, self._trained_before):
            return False
        self._trained_before = self._trained
        return True
