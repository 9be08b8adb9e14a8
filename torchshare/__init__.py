"""Two PyTorch training jobs in one process on one device: gated, coordinated, measured."""

import torch as _torch  # noqa: F401  (first: it loads the libraries that _C needs)

from torchshare._batches import Batch, SubBatch
from torchshare._errors import BudgetExceeded, Cancelled, JobFailed
from torchshare._job import Job
from torchshare._native import NativeStep
from torchshare._profiling import profile
from torchshare._results import Result
from torchshare._runtime import Runtime

__all__ = [
    "Batch",
    "BudgetExceeded",
    "Cancelled",
    "Job",
    "JobFailed",
    "NativeStep",
    "Result",
    "Runtime",
    "SubBatch",
    "profile",
]
__version__ = "0.1.0"
