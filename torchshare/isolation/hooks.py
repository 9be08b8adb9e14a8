"""Hooks on all modules, or on all optimizers, that a job registers: torch calls them in every thread, but they are only
for the job that registered them, until it ends."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.isolation.patches import Patches


def route(patches: Patches) -> None:
    for owner in map(importlib.import_module, ("torch.nn.modules.module", "torch.optim.optimizer")):
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
        job = current.job()
        if job is None:
            return register(hook, **options)

        @functools.wraps(hook)
        def only_in_job(*args: Any, **kwargs: Any) -> Any:
            return hook(*args, **kwargs) if current.job() is job else None

        handle = register(only_in_job, **options)
        job.global_hooks.append(handle)
        return handle

    return register_here
