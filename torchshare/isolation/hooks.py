"""Hooks on all modules, or on all optimizers, that a job registers: torch calls them in every thread, but they are only
for the job that registered them, until it ends."""

from __future__ import annotations

import functools
import importlib
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch.utils.hooks import RemovableHandle

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.isolation.patches import Patches
from torchshare.isolation.table import Table

TABLE = Table()
_MODULES, _OPTIMIZERS = map(importlib.import_module, ("torch.nn.modules.module", "torch.optim.optimizer"))
_TABLES = [
    (owner, name)
    for owner in (_MODULES, _OPTIMIZERS)
    for name in dir(owner)
    if name.startswith("_global_") and name.endswith(("forward_hooks", "_pre_hooks", "backward_hooks", "_post_hooks"))
]
_KINDS = ("buffer", "module", "parameter")
_LAZY = {
    **{f"register_module_{kind}_registration_hook": f"_global_{kind}_registration_hooks" for kind in _KINDS},
    **{f"register_optimizer_step_{when}_hook": f"_global_optimizer_{when}_hooks" for when in ("pre", "post")},
}
"""Tables that torch calls hooks of while it iterates: they must not change meanwhile. Each has one permanent hook here,
which calls those that the job keeps in a table of its own. By the function that registers."""
_owners: weakref.WeakKeyDictionary[Callable[..., Any], JobContext | None] = weakref.WeakKeyDictionary()


def own(hook: Callable[..., Any], job: JobContext | None = None) -> Callable[..., Any]:
    """Marks a hook that torch calls in every thread as one that acts in `job` only; None: as one of torchshare's."""
    _owners[hook] = job
    return hook


def on_all(job: JobContext) -> str | None:
    """The name of torch's table with a hook on all modules or optimizers that acts in `job`; None: there is none."""
    for name, table in job.hook_tables.items():
        if table:
            return name
    for owner, name in _TABLES:
        for hook in list(getattr(owner, name).values()):
            if _owners.get(hook, job) is job:
                return name
    return None


def leave(job: JobContext) -> None:
    """Called at the end of a job."""
    job.hook_tables.clear()
    while job.global_hooks:
        job.global_hooks.pop().remove()


def _calling_the_job_s(table: str) -> Callable[..., Any]:
    is_of_optimizers = table.startswith("_global_optimizer")

    def dispatch(*args: Any) -> Any:
        job = current.job()
        last = None
        for hook in () if job is None else list(job.hook_tables.get(table, {}).values()):
            result = hook(*args)
            if result is None:
                continue
            last = result
            if not is_of_optimizers:
                args = (*args[:-1], result)
            elif isinstance(result, tuple) and len(result) == 2:
                args = (args[0], *result)
            else:
                break  # torch raises
        return last

    return dispatch


@TABLE.at_start
def _add_permanent(patches: Patches) -> None:
    for name, table in _LAZY.items():
        register = getattr(_OPTIMIZERS if "optimizer" in name else _MODULES, name)
        patches.at_undo(register(own(_calling_the_job_s(table))).remove)


_WHY = "A hook on all modules or optimizers is called for the job that has registered it, until it ends."
_EAGER = [name for name in dir(_MODULES) if name.startswith("register_module_") and name not in _LAZY]


@TABLE.call("torch.nn.modules.module", *(name for name in _LAZY if "_module_" in name), why=_WHY, everywhere=True)
@TABLE.call("torch.optim.optimizer", *(name for name in _LAZY if "_optimizer_" in name), why=_WHY, everywhere=True)
def _into_own_table(register: Callable[..., Any], hook: Callable[..., Any]) -> Any:
    job = current.job()
    if job is None:
        return register(hook)
    hooks = job.hook_tables.setdefault(_LAZY[register.__name__], OrderedDict())
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


@TABLE.call("torch.nn.modules.module", *_EAGER, why=_WHY, everywhere=True)
def _for_the_job(register: Callable[..., Any], hook: Callable[..., Any], **options: Any) -> Any:
    job = current.owner()
    if job is None:
        return register(hook, **options)

    @functools.wraps(hook)
    def only_in_job(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs) if current.owner() is job else None

    handle = register(own(only_in_job, job), **options)
    job.global_hooks.append(handle)
    return handle
