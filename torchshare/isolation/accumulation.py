"""What a loop does once per batch, left out while sub-batches are still to come (see context/accumulation.py)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import lr_scheduler

from torchshare.context import current
from torchshare.context.accumulation import Accumulation
from torchshare.isolation.table import Table

TABLE = Table()
_SCHEDULERS = [
    name
    for name, kind in vars(lr_scheduler).items()
    if inspect.isclass(kind) and issubclass(kind, lr_scheduler.LRScheduler) and "step" in vars(kind)
]


def _accumulation() -> Accumulation | None:
    job = current.job()
    return None if job is None or not job.accumulation.optimizers else job.accumulation


@TABLE.call("torch.nn.utils", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", everywhere=True)
def _clip(original: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any) -> Any:
    """Gradients are clipped once per batch, after its last sub-batch."""
    job = current.job()
    if job is not None and job.open_loops.is_compiled:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if all(parameter.grad is None for parameter in parameters):
            raise RuntimeError(
                f"job '{job.name}': gradients must be clipped before the update, got them after a compiled step; "
                "clip them in optimizer.register_step_pre_hook, with which the step runs in eager"
            )
    accumulation = _accumulation()
    is_due = accumulation is None or accumulation.is_last
    return original(parameters, *args, **kwargs) if is_due else torch.zeros(())


@TABLE.call("torch.amp.grad_scaler:GradScaler", "unscale_", "step", "update")
def _at_the_last(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Gradients are unscaled, and the scale is updated, once per batch, after its last sub-batch."""
    accumulation = _accumulation()
    if accumulation is not None and original.__name__ == "step":
        accumulation.step()
    return original(*args, **kwargs) if accumulation is None or accumulation.is_last else None


for _name in _SCHEDULERS:
    TABLE.call(
        f"torch.optim.lr_scheduler:{_name}", "step", why="A learning rate changes once per batch, not per sub-batch."
    )(_at_the_last)


@TABLE.call("torch.nn:Module", "zero_grad")
def _zero_grad(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Gradients add up over the sub-batches of a batch."""
    accumulation = _accumulation()
    if accumulation is None or accumulation.may_zero():
        original(*args, **kwargs)
