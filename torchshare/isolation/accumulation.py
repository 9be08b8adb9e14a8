"""What a loop does once per batch, left out while sub-batches are still to come (see context/accumulation.py)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import lr_scheduler

from torchshare.context import current
from torchshare.context.accumulation import Accumulation
from torchshare.isolation.patches import Patches


def route(patches: Patches) -> None:
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"):
        patches.wrap(torch.nn.utils, name, _clipping)
    for name in ("unscale_", "step", "update"):
        scaler = torch.amp.grad_scaler.GradScaler
        patches.replace(scaler, name, _at_the_last(getattr(scaler, name)))
    for kind in vars(lr_scheduler).values():
        if inspect.isclass(kind) and issubclass(kind, lr_scheduler.LRScheduler) and "step" in vars(kind):
            patches.replace(kind, "step", _at_the_last(vars(kind)["step"]))
    patches.replace(torch.nn.Module, "zero_grad", _when_zeroing(torch.nn.Module.zero_grad))


def _accumulation() -> Accumulation | None:
    job = current.job()
    return None if job is None or not job.accumulation.optimizers else job.accumulation


def _at_the_last(original: Callable[..., Any], instead: Callable[[], Any] = lambda: None) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        accumulation = _accumulation()
        if accumulation is None:
            return original(*args, **kwargs)
        if original.__name__ == "step":
            accumulation.step()
        return original(*args, **kwargs) if accumulation.is_last else instead()

    return guarded


def _clipping(original: Callable[..., Any]) -> Callable[..., Any]:
    at_the_last = _at_the_last(original, instead=lambda: torch.zeros(()))

    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        job = current.job()
        if job is not None and job.open_loops.is_compiled:
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            if all(parameter.grad is None for parameter in parameters):
                raise RuntimeError(
                    f"job '{job.name}': gradients must be clipped before the update, got them after a compiled step; "
                    "clip them in optimizer.register_step_pre_hook, with which the step runs in eager"
                )
        return at_the_last(parameters, *args, **kwargs)

    return clip


def _when_zeroing(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def zero_grad(*args: Any, **kwargs: Any) -> None:
        accumulation = _accumulation()
        if accumulation is None or accumulation.may_zero():
            original(*args, **kwargs)

    return zero_grad
