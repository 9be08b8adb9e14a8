"""Routes numpy's process-wide random state to the calling job's own: the functions of `numpy.random`, and
`numpy.random.mtrand._rand`, the state itself, which scikit-learn, networkx and scipy draw from."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy

from torchshare.context import current
from torchshare.isolation.patches import Patches


def route(patches: Patches) -> None:
    mtrand = numpy.random.mtrand
    shared = mtrand._rand
    methods = {
        name: name for name in numpy.random.__all__ if getattr(getattr(numpy.random, name), "__self__", None) is shared
    }
    methods |= {"seed": "seed", "ranf": "random_sample", "sample": "random_sample"}
    for name, method in methods.items():
        patches.wrap(numpy.random, name, functools.partial(_routed, method=method))
    for name, of_job in (
        ("get_bit_generator", lambda job: job.numpy_random._bit_generator),
        ("set_bit_generator", lambda job, bitgen: job.host_random.use(bitgen)),
    ):
        patches.wrap(numpy.random, name, functools.partial(_in_a_job, of_job=of_job))
    routed = _RoutedState(shared)
    _route_scipy(patches, shared, routed)
    # numpy's own code reads the module's variable, and needs the state of the process there.
    patches.replace(mtrand, "__class__", type("_Mtrand", (type(mtrand),), {"_rand": property(lambda _: routed)}))


def _route_scipy(patches: Patches, shared: numpy.random.RandomState, routed: _RoutedState) -> None:
    """Each of scipy's distributions has taken the state when it was made."""
    stats = sys.modules.get("scipy.stats")
    for each in [] if stats is None else list(vars(stats).values()):
        if getattr(each, "__dict__", {}).get("_random_state") is shared:
            patches.replace(each, "_random_state", routed)


class _RoutedState(numpy.random.RandomState):
    """Has the attributes of the calling job's state."""

    def __init__(self, shared: numpy.random.RandomState) -> None:
        super().__init__(0)  # not used
        self._of_process = shared

    def __getattribute__(self, name: str) -> Any:
        job = current.owner()
        state = object.__getattribute__(self, "_of_process") if job is None else job.numpy_random
        return getattr(state, name)


def _routed(original: Callable[..., Any], method: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def routed(*args: Any, **kwargs: Any) -> Any:
        job = current.owner()
        target = original if job is None else getattr(job.numpy_random, method)
        return target(*args, **kwargs)

    return routed


def _in_a_job(original: Callable[..., Any], of_job: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def bit_generator(*args: Any, **kwargs: Any) -> Any:
        job = current.owner()
        return original(*args, **kwargs) if job is None else of_job(job, *args, **kwargs)

    return bit_generator
