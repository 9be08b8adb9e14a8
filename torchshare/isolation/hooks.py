"""Hooks on all modules, or on all optimizers, that a job registers: torch calls them in every thread, but they are only
for the job that registered them, until it ends."""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable
from typing import Any

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.isolation.patches import Patches

_MODULES, _OPTIMIZERS = map(importlib.import_module, ("torch.nn.modules.module", "torch.optim.optimizer"))
_TABLES = [
    (owner, name)
    for owner in (_MODULES, _OPTIMIZERS)
    for name in dir(owner)
    if name.startswith("_global_") and name.endswith(("forward_hooks", "_pre_hooks", "backward_hooks", "_post_hooks"))
]
_owners: weakref.WeakKeyDictionary[Callable[..., Any], JobContext | None] = weakref.WeakKeyDictionary()


def own(hook: Callable[..., Any], job: JobContext | None = None) -> Callable[..., Any]:
    """Marks a hook that torch calls in every thread as one that acts in `job` only; None: as one of torchshare's."""
    _owners[hook] = job
    return hook


def on_all(job: JobContext) -> str | None:
    """The name of torch's table with a hook on all modules or optimizers that acts in `job`; None: there is none."""
    for owner, name in _TABLES:
        for hook in list(getattr(owner, name).values()):
            if _owners.get(hook, job) is job:
                return name
    return None


def route(patches: Patches) -> None:
    for owner in (_MODULES, _OPTIMIZERS):
        for name in dir(owner):
            if name.startswith(("register_module_", "register_optimizer_")):
                patches.wrap(owner, name, _for_the_job)


def leave(job: JobContext) -> None:
    """Called at the end of a job."""
    while job.global_hooks:
        job.global_hooks.pop().remove()


def _for_the_job(register: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(register)
    def register_here(hook: Callable[..., Any], **options: Any) -> Any:
        job = current.owner()
        if job is None:
            return register(hook, **options)

        @functools.wraps(hook)
        def only_in_job(*args: Any, **kwargs: Any) -> Any:
            return hook(*args, **kwargs) if current.owner() is job else None

        handle = register(own(only_in_job, job), **options)
        job.global_hooks.append(handle)
        return handle

    return register_here
