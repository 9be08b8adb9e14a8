"""Steps and waits for input of training loops that do not use `Job.batches`."""

from __future__ import annotations

import functools
from collections.abc import Callable, MutableSet
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from torchshare.context import current, step_loop
from torchshare.context.job_context import JobContext
from torchshare.isolation import agreement, hooks, shared_changes
from torchshare.isolation.patches import Patches


def route(patches: Patches) -> None:
    patches.at_undo(register_optimizer_step_pre_hook(hooks.own(_before_step)).remove)
    patches.at_undo(register_optimizer_step_post_hook(hooks.own(_after_step)).remove)
    patches.replace(
        torch.optim.Optimizer, "__init__", remembered(torch.optim.Optimizer.__init__, lambda job: job.optimizers)
    )
    scaler = torch.amp.grad_scaler.GradScaler
    patches.replace(scaler, "step", _scaling(scaler.step))
    patches.wrap(torch.autograd, "backward", _training)
    patches.wrap(torch, "save", _saving)
    patches.replace(torch.cuda.CUDAGraph, "replay", _training(torch.cuda.CUDAGraph.replay))
    iterator = dataloader._BaseDataLoaderIter
    patches.replace(iterator, "__next__", _as_input(iterator.__next__))
    loader = dataloader.DataLoader
    patches.replace(loader, "_get_iterator", _as_input(loader._get_iterator))  # starts worker processes


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


def _scaling(original: Callable[..., Any]) -> Callable[..., Any]:
    """A step that is left out because gradients are infinite is one."""

    @functools.wraps(original)
    def step(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        job = current.job()
        before = 0 if job is None else job.step_counter.trained
        result = original(self, optimizer, *args, **kwargs)
        if job is not None and job.step_counter.trained == before:
            step_loop.optimizer_stepped(job, optimizer)
        return result

    return step


def remembered(init: Callable[..., None], known: Callable[[JobContext], MutableSet[Any]]) -> Callable[..., None]:
    """Adds what a job makes to the objects that are `known` of the job."""

    @functools.wraps(init)
    def remembering_init(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        job = current.job()
        if job is not None:
            known(job).add(self)

    return remembering_init


def _before_effect() -> None:
    """A job that has not stepped is about to do what a job does with the right settings only."""
    if not torch.compiler.is_compiling():
        job = current.owner()
        if job is not None and not job.has_stepped:
            agreement.check(job, steps=False)


def _saving(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> None:
        _before_effect()
        original(*args, **kwargs)

    return save


def _training(original: Callable[..., None]) -> Callable[..., None]:
    """The call tells a batch that trains from one of a validation."""

    @functools.wraps(original)
    def training(*args: Any, **kwargs: Any) -> None:
        _before_effect()
        original(*args, **kwargs)
        job = None if torch.compiler.is_compiling() else current.job()
        if job is not None:
            step_loop.backward_ran(job)

    return training


def _as_input(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The call waits for input."""

    @functools.wraps(original)
    def fetch(self: Any) -> Any:
        job = current.job()
        if job is None:
            return original(self)
        if not job.has_stepped:
            agreement.check(job, steps=False)
        if not job.uses_batches:
            job.largest_batch = max(job.largest_batch, getattr(self, "batch_size", None) or 0)
        with step_loop.in_input(job):
            return original(self)

    return fetch
