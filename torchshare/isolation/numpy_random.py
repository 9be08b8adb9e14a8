"""Routes numpy's process-wide random state to the calling job's own: the functions of `numpy.random`, and
`numpy.random.mtrand._rand`, the state itself, which scikit-learn, networkx and scipy draw from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy

from torchshare.context import current
from torchshare.isolation.attributes import missing
from torchshare.isolation.patches import Patches
from torchshare.isolation.table import Table

TABLE = Table()
_SHARED = numpy.random.mtrand._rand
_METHODS = {
    name: name for name in numpy.random.__all__ if getattr(getattr(numpy.random, name), "__self__", None) is _SHARED
} | {"seed": "seed", "ranf": "random_sample", "sample": "random_sample"}
"""Methods of a state, by the function of numpy.random that calls them on the shared one."""
_WHY = "Random numbers are drawn from the job's own state."


class _RoutedState(numpy.random.RandomState):
    """Has the attributes of the calling job's state."""

    def __init__(self, shared: numpy.random.RandomState) -> None:
        super().__init__(0)  # not used
        self._of_process = shared

    def __getattribute__(self, name: str) -> Any:
        job = current.owner()
        state = object.__getattribute__(self, "_of_process") if job is None else job.numpy_random
        return getattr(state, name)


@TABLE.call("numpy.random", *_METHODS, why=_WHY, everywhere=True)
def _draw(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    job = current.owner()
    target = original if job is None else getattr(job.numpy_random, _METHODS[original.__name__])
    return target(*args, **kwargs)


@TABLE.call("numpy.random", "get_bit_generator", why=_WHY, everywhere=True)
def _get_bit_generator(original: Callable[[], Any]) -> Any:
    job = current.owner()
    return original() if job is None else job.numpy_random._bit_generator


@TABLE.call("numpy.random", "set_bit_generator", why=_WHY, everywhere=True)
def _set_bit_generator(original: Callable[[Any], None], bitgen: Any) -> None:
    job = current.owner()
    original(bitgen) if job is None else job.host_random.use(bitgen)


_routed = _RoutedState(_SHARED)


@TABLE.value("numpy.random.mtrand", "__class__", why=_WHY)
def _with_routed_state(kind: type) -> type:
    """numpy's own code reads the module's variable, and needs the state of the process there."""
    return type("_Mtrand", (kind,), {"_rand": property(lambda _: _routed), "__getattr__": missing})


@TABLE.at_start
def _route_scipy(patches: Patches) -> None:
    """Each of scipy's distributions has taken the state when it was made."""
    stats = sys.modules.get("scipy.stats")
    for each in [] if stats is None else list(vars(stats).values()):
        if getattr(each, "__dict__", {}).get("_random_state") is _SHARED:
            patches.replace(each, "_random_state", _routed)
