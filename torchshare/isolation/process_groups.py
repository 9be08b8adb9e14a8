"""Process groups of `torch.distributed`: each job has its own default group, and its own names of groups.

torch keeps the default group and the tables of groups in one object, `distributed_c10d._world`, and resolves groups by
name in C++. In a job's threads, the attributes of that object are the job's, and names of groups begin with the job's
name. Their keys in the store, which begin with the group's name, therefore do not collide.

In a program that has a default group itself, a job's is made from it when the job first asks for it; on all ranks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.isolation.table import Table


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
    """Held until the job's end, see `_destroy_process_group`."""
    is_decided: bool = False
    """Whether the job has set its default group, or asked for it."""


_of_jobs: dict[JobContext, _Groups] = {}


TABLE = Table()
# init_process_group replaces it.
TABLE.value("sys", "excepthook", why="What torch.distributed sets there is undone at the end.")(lambda hook: hook)


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
    if groups.destroyed:
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


@TABLE.value("torch.distributed.distributed_c10d:_world", "__class__")
def _routed(world: type) -> type:
    """Each job has its own default group and its own names of groups."""

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


_C10D = "torch.distributed.distributed_c10d"


@TABLE.call(_C10D, "destroy_process_group", everywhere=True)
def _destroy_process_group(original: Callable[..., Any], group: Any = None) -> None:
    """A job's groups are kept until its end.

    torch 2.11 deadlocks if the last reference to a group is a DDP module's: the module's destructor joins gloo's
    threads with the GIL, for which they may wait to free a tensor. Python's own reference is dropped without the GIL.
    """
    own = _own()
    if own is not None:
        own.destroyed += [group] if group is not None else [*own.pg_map]
    original(group)


@TABLE.call(_C10D, "_process_group_name")
def _process_group_name(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Names of groups begin with the job's name, so that their keys in a store do not collide."""
    name = original(*args, **kwargs)
    own = _own()
    if own is None:
        return name
    own.made += own.default_pg is None
    return f"{own.job.runtime}/{own.job.name}/{own.made}/{name}"


@TABLE.call(_C10D, "_register_process_group")
def _register_process_group(original: Callable[..., Any], name: Any, group: Any) -> None:
    """A job unregisters its own groups only."""
    own = _own()
    if own is not None:
        own.registered.add(name)
    original(name, group)


@TABLE.call(_C10D, "_unregister_all_process_groups")
def _unregister_all_process_groups(original: Callable[[], None]) -> None:
    """A job unregisters its own groups only."""
    from torch._C._distributed_c10d import _unregister_process_group

    own = _own()
    if own is None:
        original()
        return
    while own.registered:
        _unregister_process_group(own.registered.pop())
