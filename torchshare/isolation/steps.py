"""Steps and waits for input of training loops that do not use `Job.batches`."""

from __future__ import annotations

from collections.abc import Callable, MutableSet
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from torchshare.context import current, step_loop
from torchshare.context.job_context import JobContext
from torchshare.isolation import agreement, hooks, shared_changes
from torchshare.isolation.patches import Patches
from torchshare.isolation.table import Table

TABLE = Table()


@TABLE.at_start
def _add_hooks(patches: Patches) -> None:
    patches.at_undo(register_optimizer_step_pre_hook(hooks.own(_before_step)).remove)
    patches.at_undo(register_optimizer_step_post_hook(hooks.own(_after_step)).remove)


def _before_step(_optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    job = current.owner()
    if job is not None and not job.has_stepped:
        agreement.check(job, steps=True)
        script = current.script()
        if script is not None:
            shared_changes.check(script)


def _after_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    job = current.job()
    if job is not None:
        step_loop.optimizer_stepped(job, optimizer)


@TABLE.call("torch.amp.grad_scaler:GradScaler", "step")
def _scaled_step(
    original: Callable[..., Any], self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
) -> Any:
    """A step that is left out because gradients are infinite counts as one."""
    job = current.job()
    before = 0 if job is None else job.step_counter.trained
    result = original(self, optimizer, *args, **kwargs)
    if job is not None and job.step_counter.trained == before:
        step_loop.optimizer_stepped(job, optimizer)
    return result


def remembering(known: Callable[[JobContext], MutableSet[Any]]) -> Callable[..., None]:
    """Adds what a job makes to the objects that are `known` of the job."""

    def remembering_init(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
        """A job knows the optimizers and models that it has made."""
        original(self, *args, **kwargs)
        job = current.job()
        if job is not None:
            known(job).add(self)

    return remembering_init


TABLE.call("torch.optim:Optimizer", "__init__")(remembering(lambda job: job.optimizers))


def _before_effect() -> None:
    """A job that has not stepped is about to do what a job does with the right settings only."""
    if not torch.compiler.is_compiling():
        job = current.owner()
        if job is not None and not job.has_stepped:
            agreement.check(job, steps=False)


@TABLE.call("torch", "save", everywhere=True)
def _save(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Nothing is saved by a job that has run with settings that another job has set."""
    _before_effect()
    original(*args, **kwargs)


@TABLE.call("torch.cuda:CUDAGraph", "replay")
@TABLE.call("torch.autograd", "backward", everywhere=True)
def _backward(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """A batch with a backward pass is one of training, not of validation."""
    _before_effect()
    original(*args, **kwargs)
    job = None if torch.compiler.is_compiling() else current.job()
    if job is not None:
        step_loop.backward_ran(job)


@TABLE.call("torch.utils.data.dataloader:_BaseDataLoaderIter", "__next__")
@TABLE.call("torch.utils.data.dataloader:DataLoader", "_get_iterator")  # starts worker processes
def _fetch(original: Callable[[Any], Any], self: Any) -> Any:
    """A job that waits for input lets lower jobs run."""
    job = current.job()
    if job is None:
        return original(self)
    if not job.has_stepped:
        agreement.check(job, steps=False)
    if not job.uses_batches:
        job.largest_batch = max(job.largest_batch, getattr(self, "batch_size", None) or 0)
    with step_loop.in_input(job):
        return original(self)
