from __future__ import annotations

import weakref
from collections.abc import Callable


class StepCounter:
    """Decides what a job's steps are.

    Of loops over `Job.batches` or `torchshare.batches`: the batches that train, with a backward pass or an optimizer's
    step. Those of a validation are no steps. Of a job that only evaluates, all are.
    Of other loops: the steps of an optimizer. Where a job has several, such as a GAN: those of the first, until another
    one steps twice in a row. From the first mark on (`torchshare.step`): the marks.
    """

    is_marked = False
    """Whether the loop marks its steps itself."""
    is_by_optimizer = False
    """Whether the last step ended with an optimizer's."""

    trained = 0
    """Backward passes and steps of optimizers."""

    def __init__(self) -> None:
        self._counted: Callable[[], object] = lambda: None
        self._latest: Callable[[], object] = lambda: None
        self._trained_before = 0  # at the end of the last step

    def counts(self, optimizer: object) -> bool:
        """Called after each step of an optimizer in another loop."""
        if self._counted() is None or self._latest() is optimizer:
            self._counted = weakref.ref(optimizer)
        self._latest = weakref.ref(optimizer)
        return self._counted() is optimizer

    def waits(self) -> bool:
        """Whether there was a backward pass since the last step."""
        return self.trained > self._trained_before

    def is_step(self, begun: int, has_optimizers: bool) -> bool:
        """Whether a batch is a step that has ended, and began at `trained`. Of two loops, one in the body of the other:
        the inner one's."""
        if not self.trained and not has_optimizers:
            return True
        if self.trained <= max(begun, self._trained_before):
            return False
        self.end_step()
        return True

    def end_step(self) -> None:
        self._trained_before = self.trained
