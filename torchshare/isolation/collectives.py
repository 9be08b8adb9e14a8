"""Waits of a job for its other ranks: while it waits in a collective, lower jobs may enter at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.isolation.table import Table

TABLE = Table()


@TABLE.call("torch.distributed:Work", "wait")
@TABLE.call("torch.distributed", "_broadcast_coalesced", "_verify_params_across_processes")
@TABLE.call("torch.distributed.distributed_c10d", "_store_based_barrier")
def _as_wait(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """While a job waits for its other ranks, lower jobs may enter at once."""
    job = current.job()
    if job is None:
        return original(*args, **kwargs)
    job.handle.begin_wait("collective")
    try:
        return original(*args, **kwargs)
    finally:
        job.handle.end_wait()


@TABLE.call("torch.nn.parallel:DistributedDataParallel", "_post_forward")
def _watched_post_forward(original: Callable[..., Any], self: Any, output: Any) -> Any:
    """While a backward pass waits for all ranks, lower jobs may enter at once.

    DistributedDataParallel waits at the end of the pass, in C++, in a callback of the autograd engine. Callbacks run in
    the order in which they were queued: ours, queued at the start of the pass, comes before that one, and the one that
    ours queues comes after it."""
    output = original(self, output)
    job = current.job()
    if job is not None and torch.is_grad_enabled() and self.require_backward_grad_sync:
        leaves = torch.utils._pytree.tree_leaves(output)
        first: Any = next((each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad), None)
        if first is not None:
            first.register_hook(functools.partial(_expect_wait, job))
    return output


class _Wait:
    """A wait for other ranks. Ends with `end`, or when nothing refers to it: the engine drops its callbacks when a
    backward pass fails."""

    def __init__(self, job: JobContext) -> None:
        self._job: JobContext | None = job
        job.handle.begin_wait("collective")

    def end(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.handle.end_wait()

    __del__ = end


def _expect_wait(job: JobContext, _gradient: torch.Tensor) -> None:
    queue = torch.autograd.Variable._execution_engine.queue_callback
    queue(lambda: queue(_Wait(job).end))
