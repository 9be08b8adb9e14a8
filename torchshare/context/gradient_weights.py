from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchshare.context.tensor_map import TensorMap


class GradientWeights:
    """Multiplies the gradients of an accumulation's optimizers by the weight of the sub-batch that they come from, as
    its loss would be. Each parameter has one hook, whatever the number of loaders and optimizers."""

    def __init__(self, job: str, weigh: Callable[[Tensor], Tensor], has_begun: Callable[[], bool]) -> None:
        """`weigh`: returns a gradient of the current sub-batch, weighted. `has_begun`: see Accumulation."""
        self._job = job
        self._weigh = weigh
        self._has_begun = has_begun
        self._hooks: TensorMap[Any] = TensorMap()
        self._unseen: TensorMap[None] = TensorMap()
        """Parameters that had no gradient yet, and whose hook has not been called."""

    def add(self, optimizer: Any) -> None:
        """Weights the optimizer's parameters from now on: also those that are frozen, which may be thawed between two
        sub-batches. Raises RuntimeError for a gradient that a sub-batch has left already."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in self._hooks and _can_have_gradient(parameter):
                    if parameter.grad is not None and self._has_begun():
                        raise RuntimeError(
                            f"job '{self._job}': torchshare.accumulate must be called before the first backward of a "
                            f"batch, got a parameter of shape {tuple(parameter.shape)} with a gradient of a sub-batch"
                        )
                    self._add(parameter)

    def _add(self, parameter: Tensor) -> None:
        if parameter.grad is None:
            self._unseen[parameter] = None
        was_frozen = not parameter.requires_grad
        parameter.requires_grad_()
        self._hooks[parameter] = parameter.register_hook(self._weigher(parameter))  # type: ignore[no-untyped-call]
        parameter.requires_grad_(not was_frozen)

    def _weigher(self, parameter: Tensor) -> Callable[[Tensor], Tensor]:
        weigh, unseen, reference = self._weigh, self._unseen, weakref.ref(parameter)

        def weigh_seen(gradient: Tensor) -> Tensor:
            if unseen and (known := reference()) is not None:
                unseen.discard(known)
            return weigh(gradient)

        return weigh_seen

    def are_bypassed(self) -> bool:
        """Whether a parameter has got a gradient that no hook has seen."""
        return any(parameter.grad is not None for parameter in self._unseen)

    def remove(self) -> None:
        for _, hook in self._hooks.items():
            hook.remove()
        self._hooks.clear()
        self._unseen.clear()


def _can_have_gradient(parameter: Tensor) -> bool:
    floats = parameter.is_floating_point() or parameter.is_complex()
    return floats and parameter.is_leaf and not parameter.is_inference()
