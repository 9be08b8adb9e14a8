from __future__ import annotations

import random
from typing import Any

import numpy
from numpy.random.bit_generator import BitGenerator

_NUMPY_SEEDS = 2**32


class Kept:
    """Random states at some moment; see HostRandom.keep."""

    def __init__(self) -> None:
        self.states: tuple[Any, Any] | None = None
        """None: nothing has asked for them since, so they are unchanged."""


class HostRandom:
    """A job's states of Python's and numpy's random functions."""

    def __init__(self, seed: int) -> None:
        self._python = random.Random(seed)
        self._numpy = numpy.random.RandomState(seed % _NUMPY_SEEDS)
        self._unsaved: list[Kept] = []

    @property
    def python(self) -> random.Random:
        self._save()
        return self._python

    @property
    def numpy(self) -> numpy.random.RandomState:
        self._save()
        return self._numpy

    def numpy_state(self) -> Any:
        """As a value that can be saved and compared."""
        state: Any = self.numpy.get_state(legacy=False)
        if state["bit_generator"] != "MT19937":
            return state
        return state["state"]["key"].tolist(), state["state"]["pos"], state["has_gauss"], state["gauss"]

    def set_numpy_state(self, state: Any) -> None:
        if not isinstance(state, dict):
            keys, *rest = state
            state = ("MT19937", numpy.array(keys, dtype=numpy.uint32), *rest)
        self.numpy.set_state(state)

    def use(self, generator: BitGenerator) -> None:
        """See numpy.random.set_bit_generator."""
        self._save()
        self._numpy = numpy.random.RandomState(generator)

    def keep(self) -> Kept:
        """Keeps the states for `restore`, until `forget`. They are saved when something next asks for them: saving
        takes longer than some training steps."""
        kept = Kept()
        self._unsaved.append(kept)
        return kept

    def forget(self, kept: Kept) -> None:
        if kept in self._unsaved:
            self._unsaved.remove(kept)

    def restore(self, kept: Kept) -> None:
        self.forget(kept)
        if kept.states is not None:
            self.python.setstate(kept.states[0])
            self.numpy.set_state(kept.states[1])

    def _save(self) -> None:
        if self._unsaved:
            states = self._python.getstate(), self._numpy.get_state(legacy=False)
            for kept in self._unsaved:
                kept.states = states
            self._unsaved.clear()
