"""DistributedDataParallel in batches that are split: gradients are averaged over ranks once per batch, in the backward
pass of the last sub-batch. Ranks may therefore differ in their number of sub-batches."""

from __future__ import annotations

import torch

from torchshare.isolation.patches import Patches
from torchshare.isolation.steps import remembered


def route(patches: Patches) -> None:
    if torch.distributed.is_available():
        kind = torch.nn.parallel.DistributedDataParallel
        patches.replace(kind, "__init__", remembered(kind.__init__, lambda job: job.data_parallel))
