"""A process that a job forks goes on from the job's random state: there, the process's generators of torch and numpy
are set to it. Python's `random` seeds itself in each forked process."""

from __future__ import annotations

import os
import threading

import numpy
import torch

from torchshare.context import current

_DEFAULT = torch.default_generator
_SHARED = numpy.random.mtrand._rand


class _Forking(threading.local):
    """What the calling thread draws from, as it forks."""

    torch: torch.Tensor | None = None
    numpy: numpy.random.RandomState | None = None
    numpy_state: dict[str, object] | None = None


_forking = _Forking()


def _keep() -> None:
    """In the parent: in the child, a thread that it lacks may hold the lock of a job's state for ever."""
    generator, job = current.generator(), current.owner()
    _forking.torch = None if generator is None else generator.get_state()
    if job is not None:
        _forking.numpy = job.numpy_random
        _forking.numpy_state = _forking.numpy.get_state(legacy=False)


def _drop() -> None:
    _forking.torch = _forking.numpy = _forking.numpy_state = None


def _take_over() -> None:
    if _forking.torch is not None:
        _DEFAULT.set_state(_forking.torch)
    if _forking.numpy is not None and _forking.numpy_state is not None:
        own = _forking.numpy._bit_generator
        if type(own) is not type(_SHARED._bit_generator):
            numpy.random.mtrand.set_bit_generator(own)
        _SHARED.set_state(_forking.numpy_state)
    _drop()


os.register_at_fork(before=_keep, after_in_parent=_drop, after_in_child=_take_over)
