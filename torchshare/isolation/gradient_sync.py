"""DistributedDataParallel in batches that are split: gradients are averaged over ranks once per batch, in the backward
pass of the last sub-batch. Ranks may therefore differ in their number of sub-batches."""

from __future__ import annotations

from torchshare.isolation.steps import remembering
from torchshare.isolation.table import Table

TABLE = Table()
TABLE.call("torch.nn.parallel:DistributedDataParallel", "__init__")(remembering(lambda job: job.data_parallel))
