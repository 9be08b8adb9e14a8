"""Says where splitting a batch changes the mathematics."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchshare.device import devices
from torchshare.isolation import forward_hook

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


@contextlib.contextmanager
def around(job: JobContext, is_split: Callable[[], bool]) -> Iterator[None]:
    """Around the forward passes of a batch: one warning per job, of its first split batch that trains (or the first
    while no other job compiles). Later batches are not looked at."""
    if not (job.warns_of_split and is_split()):
        yield
        return
    differences = _Differences(job)
    with forward_hook.registered(job, differences.look) as looks:
        try:
            yield
        finally:
            job.warns_of_split = not looks or differences.only_evaluates
            if differences.found:
                text = "; ".join(differences.found.values())
                warnings.warn(
                    f"job '{job.name}': {text}. Results differ from the unsplit batch's, and are the same at "
                    "the same sub_batch.",
                    stacklevel=4,
                )


class _Differences:
    """What differs in a split batch, in one sentence per kind."""

    def __init__(self, job: JobContext) -> None:
        self._job = job
        self._first = self._sub_batch()
        self._seen: set[nn.Module] = set()
        self._called: set[tuple[nn.Module, int]] = set()
        self.found: dict[str, str] = {}
        self.only_evaluates = False
        """Modules have been called, but none to train it."""

    def _sub_batch(self) -> int:
        return self._job.open_loops.sub_batches

    def look(self, module: nn.Module, inputs: tuple[Any, ...]) -> bool:
        """Called before a module's forward. Returns whether to stop. Looks at the layers when their model is called:
        those of a compiled one are not called one by one."""
        if not (module.training and torch.is_grad_enabled()):
            self.only_evaluates = not self._seen
            return False
        self.only_evaluates = False
        for layer in module.modules() if module not in self._seen else ():
            self._seen.add(layer)
            self._look_at(layer)
        if isinstance(module, _RECURRENT) and self._gets_state_from_outside(module, inputs):
            self.found["state"] = (
                f"{type(module).__name__} gets a state from outside of the sub-batch; one that the loop has kept is of "
                "other rows"
            )
        may_get_state = "state" not in self.found and any(isinstance(layer, _RECURRENT) for layer in self._seen)
        return bool(self.found) and not may_get_state

    def _look_at(self, layer: nn.Module) -> None:
        name = type(layer).__name__
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training:
            self.found["statistics"] = (
                f"{name} takes its statistics from each sub-batch, and updates its running mean and variance once "
                "per sub-batch (GroupNorm and LayerNorm do not)"
            )
        elif layer.training and _drops(layer):
            self.found["masks"] = f"{name} draws its masks once per sub-batch"

    def _gets_state_from_outside(self, layer: nn.Module, inputs: tuple[Any, ...]) -> bool:
        """Whether this is the layer's first call in a sub-batch after the first one, with a state that is not zero and
        that no operation of this sub-batch has computed: it would have a grad_fn."""
        sub_batch = self._sub_batch()
        is_later = (layer, sub_batch) in self._called
        self._called.add((layer, sub_batch))
        if is_later or sub_batch == self._first or len(inputs) < 2 or inputs[1] is None:
            return False
        state = inputs[1][0] if isinstance(inputs[1], (tuple, list)) else inputs[1]
        if state.requires_grad or (state.device.type != "cpu" and devices.is_capturing()):
            return False
        return bool(state.any())


def _drops(layer: nn.Module) -> bool:
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    return isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)) and layer.dropout > 0
