from __future__ import annotations

import weakref
from collections.abc import Callable


class StepCounter:
    """Decides which of a job's optimizer steps are its steps, where it has several optimizers, such as a GAN: those of
    the first, until another one steps twice in a row."""

    def __init__(self) -> None:
        self._counted: Callable[[], object] = lambda: None
        self._latest: Callable[[], object] = lambda: None

    def counts(self, optimizer: object) -> bool:
        """Called after each step of an optimizer."""
        if self._counted() is None or self._latest() is optimizer:
            self._counted = weakref.ref(optimizer)
        self._latest = weakref.ref(optimizer)
        return self._counted() is optimizer
