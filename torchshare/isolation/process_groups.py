"""Process groups of `torch.distributed`: each job has its own default group, and its own names of groups.

torch keeps the default group and the tables of groups in one object, `distributed_c10d._world`, and resolves groups by
name in C++. In a job's threads, the attributes of that object are the job's, and names of groups begin with the job's
name. Their keys in the store, which begin with the group's name, therefore do not collide.

In a program that has a default group itself, a job's is made from it when the job first asks for it; on all ranks.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.isolation.patches import Patches


@dataclass(eq=False)
class _Groups:
    """What torch's _World keeps, for one job."""

    job: JobContext
    default_pg: Any = None
    pg_map: dict[Any, Any] = field(default_factory=dict)
    pg_names: dict[Any, str] = field(default_factory=dict)
    pg_group_ranks: dict[Any, dict[int, int]] = field(default_factory=dict)
    pg_backend_config: dict[Any, str] = field(default_factory=dict)
    group_count: int = 0
    tags_to_pg: dict[str, list[Any]] = field(default_factory=dict)
    pg_to_tag: dict[Any, str] = field(default_factory=dict)
    pg_coalesce_state: dict[Any, list[Any]] = field(default_factory=dict)
    comms: list[Any] = field(default_factory=list)
    registered: set[Any] = field(default_factory=set)
    """Names that C++ resolves."""
    made: int = 0
    """Default groups that the job has made: the store keeps the keys of ended groups."""
    destroyed: list[Any] = field(default_factory=list)
    """Held until the job's end, see `_held`."""
    is_decided: bool = False
    """Whether the job has set its default group, or asked for it."""


_of_jobs: dict[JobContext, _Groups] = {}


def route(patches: Patches) -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    patches.replace(distributed_c10d._world, "__class__", _routed(distributed_c10d._World))
    for name, routed in (
        ("_process_group_name", _named_after_job),
        ("_register_process_group", _recorded),
        ("_unregister_all_process_groups", _of_the_job),
    ):
        patches.replace(distributed_c10d, name, routed(getattr(distributed_c10d, name)))
    patches.wrap(distributed_c10d, "destroy_process_group", _held)
    patches.replace(sys, "excepthook", sys.excepthook)  # init_process_group replaces it


def leave(job: JobContext) -> None:
    """Called at the end of a job. Drops its groups, so that ranks that wait for the job in a collective get an error.
    Gloo closes a group's connections when nothing refers to it."""
    groups = _of_jobs.get(job)
    if groups is None:
        return
    try:
        if groups.default_pg is not None:
            torch.distributed.destroy_process_group()
    finally:
        del _of_jobs[job]
    gc.collect()  # what refers to the groups, before the groups themselves
    groups.destroyed.clear()


def _own() -> _Groups | None:
    """The groups of the calling thread's job, or of the script that started the thread."""
    job, script = current.job(), current.script()
    if job is not None:
        if job not in _of_jobs:
            _of_jobs[job] = _Groups(job)
        return _of_jobs[job]
    return None if script is None else _of_jobs.get(script.job)


def _routed(world: type) -> type:
    """torch's _World; in a job, with the job's attributes."""

    class JobsWorld(world):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            own = _own()
            if own is None or not hasattr(own, name):
                return super().__getattribute__(name)
            if name == "default_pg" and not own.is_decided:
                own.is_decided = True
                _make_like(super().__getattribute__(name))
            return getattr(own, name)

        def __setattr__(self, name: str, value: object) -> None:
            own = _own()
            if own is None or not hasattr(own, name):
                super().__setattr__(name, value)
            else:
                own.is_decided = own.is_decided or name == "default_pg"
                setattr(own, name, value)

    return JobsWorld


def _make_like(outer: Any) -> None:
    """Makes the job's default group from the program's, if it has one."""
    from torch.distributed import distributed_c10d

    if outer is None:
        return
    backend, store = distributed_c10d._World.pg_map.__get__(distributed_c10d._world)[outer]
    store = store.clone()  # a connection of its own: another job may hold the program's while it waits for its ranks
    distributed_c10d.init_process_group(
        backend, store=store, rank=outer.rank(), world_size=outer.size(), device_id=outer.bound_device_id
    )


def _held(destroy: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps the job's groups until its end. torch 2.11 deadlocks if the last reference to a group is a DDP module's:
    the module's destructor joins gloo's threads with the GIL, for which they may wait to free a tensor. Python's own
    reference is dropped without the GIL."""

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        own = _own()
        if own is not None:
            own.destroyed += [group] if group is not None else [*own.pg_map]
        destroy(group)

    return destroy_process_group


def _named_after_job(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def process_group_name(*args: Any, **kwargs: Any) -> Any:
        name = original(*args, **kwargs)
        own = _own()
        if own is None:
            return name
        own.made += own.default_pg is None
        return f"{own.job.runtime}/{own.job.name}/{own.made}/{name}"

    return process_group_name


def _recorded(register: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(register)
    def register_process_group(name: Any, group: Any) -> None:
        own = _own()
        if own is not None:
            own.registered.add(name)
        register(name, group)

    return register_process_group


def _of_the_job(unregister_all: Callable[..., Any]) -> Callable[..., Any]:
    from torch._C._distributed_c10d import _unregister_process_group

    @functools.wraps(unregister_all)
    def unregister_all_process_groups() -> None:
        own = _own()
        if own is None:
            unregister_all()
            return
        while own.registered:
            _unregister_process_group(own.registered.pop())

    return unregister_all_process_groups
