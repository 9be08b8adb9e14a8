"""DistributedDataParallel in batches that are split: gradients are averaged over ranks once per batch, in the backward
pass of the last sub-batch. Ranks may therefore differ in their number of sub-batches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchshare.isolation.steps import remembering
from torchshare.isolation.table import Table

TABLE = Table()
TABLE.call("torch.nn.parallel:DistributedDataParallel", "__init__")(remembering(lambda job: job.data_parallel))

_here = threading.local()


@TABLE.value("torch.nn.parallel:DistributedDataParallel", "_inside_ddp_forward")
def _inside_forward(_original: Any) -> Callable[..., Any]:
    """torch.compile finds the DDP module whose forward the calling thread runs, not another job's."""

    @contextlib.contextmanager
    @torch._disable_dynamo(recursive=False)  # type: ignore[attr-defined]
    def inside(module: Any) -> Iterator[None]:
        former, _here.module = getattr(_here, "module", None), module
        try:
            yield
        finally:
            _here.module = former

    return inside


@TABLE.value("torch.nn.parallel:DistributedDataParallel", "_get_active_ddp_module")
def _active_module(original: Callable[[], Any]) -> Any:
    """torch.compile finds the DDP module whose forward the calling thread runs, not another job's."""
    return staticmethod(lambda: getattr(_here, "module", None) or original())
