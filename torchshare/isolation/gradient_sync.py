"""DistributedDataParallel in batches that are split: gradients are averaged over ranks once per batch, in the backward
pass of the last sub-batch. Ranks may therefore differ in their number of sub-batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchshare.context import current
from torchshare.isolation.patches import Patches


def route(patches: Patches) -> None:
    if torch.distributed.is_available():
        kind = torch.nn.parallel.DistributedDataParallel
        patches.replace(kind, "__init__", _remembered(kind.__init__))


def _remembered(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def remembering_init(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        job = current.job()
        if job is not None:
            job.data_parallel.add(self)

    return remembering_init
