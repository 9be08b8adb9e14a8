"""Hooks on all modules, or on all optimizers, that a job registers: torch calls them in every thread, but they are only
for the job that registered them, until it ends.

Without the GIL, no table of torch may change while another thread iterates over it, as each call of a module does. A
change of one makes a new table, and puts it in the place of the former."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch.utils.hooks import RemovableHandle

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.isolation.patches import Patches, copied
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


_replaced = [
    name
    for name, table in vars(_MODULES).items()
    if name.startswith("_global_") and isinstance(table, OrderedDict) and name not in _LAZY.values()
]
_replacing = threading.RLock()  # held while tables are replaced; reentrant: a finalizer may remove a hook
os.register_at_fork(after_in_child=_replacing._at_fork_reinit)  # type: ignore[attr-defined]
_first: dict[str, OrderedDict[int, Any]] = {}
"""The tables in which the program has registered hooks before the first runtime: in place again after the last one,
because a handle of torch's refers to its table."""
_ids = itertools.count(-1, -1)  # two threads may get the same one of torch's, which are positive


class _Handle(RemovableHandle):
    """The handle of a hook in a table that is replaced."""

    def __init__(self, hooks_dict: Any, *, extra_dict: Any = None) -> None:
        super().__init__(hooks_dict, extra_dict=extra_dict)
        self.id = next(_ids)

    def remove(self) -> None:
        _remove(self.id)

    def __reduce__(self) -> Any:
        """A copy refers to no hook, as that of a handle of torch's in another process."""
        return RemovableHandle, (OrderedDict(),)


def add(register: Callable[..., Any], hook: Callable[..., Any], **options: Any) -> RemovableHandle:
    """Calls one of torch's functions that register a hook on all modules, and puts new tables in place."""
    with _replacing:
        variables = {**vars(_MODULES), "RemovableHandle": _Handle}
        variables.update((name, OrderedDict()) for name in _replaced)
        handle: RemovableHandle = copied(register, variables)(hook, **options)
        for name in sorted(_replaced, reverse=True):  # what says how a hook is called comes first
            if variables[name]:
                _replace(name, added=variables[name])
        vars(_MODULES)["_global_is_full_backward_hook"] = variables["_global_is_full_backward_hook"]
    return handle


def _remove(key: int) -> None:
    with _replacing:
        for name in sorted(_replaced):  # what says how a hook is called goes last
            table = getattr(_MODULES, name)
            if key in table and _first:
                _replace(name, removed=key)
            elif key in table:
                del table[key]


def _replace(name: str, added: Mapping[int, Any] = MappingProxyType({}), removed: int | None = None) -> None:
    variables = vars(_MODULES)
    while True:
        present = variables[name]
        new = OrderedDict(item for item in (*present.items(), *added.items()) if item[0] != removed)
        if variables[name] is present:  # else a finalizer has replaced it meanwhile
            variables[name] = new
            return


@TABLE.at_start
def _keep_first(patches: Patches) -> None:
    with _replacing:
        _first.update((name, getattr(_MODULES, name)) for name in _replaced)
    patches.at_undo(_put_first_back)


def _put_first_back() -> None:
    with _replacing:
        for name, table in _first.items():
            present = getattr(_MODULES, name)
            if present is not table:
                table.clear()
                table.update(present)
                vars(_MODULES)[name] = table
        _first.clear()


@TABLE.call("torch.utils.hooks:RemovableHandle", "remove", everywhere=True)
def _remove_of_program(original: Callable[[RemovableHandle], None], handle: RemovableHandle) -> None:
    """A hook on all modules that was registered before the first runtime is removed from the table that has replaced
    the one of its handle."""
    table = handle.hooks_dict_ref()
    if table is not None and any(table is each for each in list(_first.values())):
        _remove(handle.id)
    original(handle)


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
        return add(register, hook, **options)

    @functools.wraps(hook)
    def only_in_job(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs) if current.owner() is job else None

    handle = add(register, own(only_in_job, job), **options)
    job.global_hooks.append(handle)
    return handle
