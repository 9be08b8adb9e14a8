"""Runs two PyTorch training jobs in one process, on one device."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

from torchshare.context.names import escape_message
from torchshare.torch_versions import check_build

if TYPE_CHECKING:
    from torchshare import _C as _C
    from torchshare.context.cache_memory import cache_memory
    from torchshare.context.errors import BudgetExceeded, Cancelled, JobFailed
    from torchshare.context.results import Result, Results
    from torchshare.profiles.profile import Profile
    from torchshare.profiling.measure import profile
    from torchshare.runtime.bound import BoundReport
    from torchshare.runtime.gaps import GapReport
    from torchshare.runtime.job import Job
    from torchshare.runtime.options import JobOptions, RuntimeOptions
    from torchshare.runtime.runtime import Runtime
    from torchshare.runtime.sharing import SharingReport
    from torchshare.serving.compiled_model import CompiledModel, compiled
    from torchshare.serving.periods import periods
    from torchshare.serving.request import Request
    from torchshare.serving.request_batch import RequestBatch
    from torchshare.serving.requests import requests
    from torchshare.serving.served import serve
    from torchshare.training.batches import Batch
    from torchshare.training.compiled_step import CompiledStep
    from torchshare.training.plain_loop import accumulate, batches, step, track
    from torchshare.training.sub_batch import SubBatch
    from torchshare.version import __version__

__all__ = [
    "Batch",
    "BoundReport",
    "BudgetExceeded",
    "Cancelled",
    "CompiledModel",
    "CompiledStep",
    "GapReport",
    "Job",
    "JobFailed",
    "JobOptions",
    "Profile",
    "Request",
    "RequestBatch",
    "Result",
    "Results",
    "Runtime",
    "RuntimeOptions",
    "SharingReport",
    "SubBatch",
    "__version__",
    "accumulate",
    "batches",
    "cache_memory",
    "compiled",
    "periods",
    "profile",
    "requests",
    "serve",
    "step",
    "track",
]

logging.getLogger(__name__).addFilter(escape_message)

# Imported on first use: `torchshare simulate` needs no torch, and most programs need no compiled steps.
_MODULES = {
    "Batch": "training.batches",
    "BoundReport": "runtime.bound",
    "BudgetExceeded": "context.errors",
    "Cancelled": "context.errors",
    "CompiledModel": "serving.compiled_model",
    "CompiledStep": "training.compiled_step",
    "GapReport": "runtime.gaps",
    "Job": "runtime.job",
    "JobFailed": "context.errors",
    "JobOptions": "runtime.options",
    "Profile": "profiles.profile",
    "Request": "serving.request",
    "RequestBatch": "serving.request_batch",
    "Result": "context.results",
    "Results": "context.results",
    "Runtime": "runtime.runtime",
    "RuntimeOptions": "runtime.options",
    "SharingReport": "runtime.sharing",
    "SubBatch": "training.sub_batch",
    "__version__": "version",
    "accumulate": "training.plain_loop",
    "batches": "training.plain_loop",
    "cache_memory": "context.cache_memory",
    "compiled": "serving.compiled_model",
    "periods": "serving.periods",
    "profile": "profiling.measure",
    "requests": "serving.requests",
    "serve": "serving.served",
    "step": "training.plain_loop",
    "track": "training.plain_loop",
}


def __getattr__(name: str) -> object:
    if name == "_C":
        check_build()  # imports torch, which loads the libraries that _C links to
        return importlib.import_module("torchshare._C")
    if name not in _MODULES:
        raise AttributeError(f"module 'torchshare' has no attribute '{name}'")
    value: object = getattr(importlib.import_module(f"torchshare.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
