"""`torchshare doctor`: reports what this machine has, and what will not work on it."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.table import Table

from torchshare import _C
from torchshare.cli.outputs import print_table
from torchshare.version import __version__

_GREEN_DRIVER = 12080  # first driver version with green contexts as torch needs them


@dataclass(frozen=True)
class Finding:
    what: str
    found: str
    lack: str = ""
    """What will not work because of it; empty if everything works."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.description = "Prints what torchshare found: versions, CUDA, GPUs, stream priorities, green contexts, MPS."
    parser.set_defaults(run=run)


def run(_arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns exit code 0 whatever is missing: jobs run on the CPU anyway."""
    table = Table("what", "found", "what will not work", title="torchshare doctor")
    for finding in findings():
        table.add_row(finding.what, finding.found, finding.lack or "-")
    print_table(table)
    return 0


def findings() -> Iterator[Finding]:
    """Versions, CPU, GPUs and sharing features of this machine."""
    yield Finding("torchshare", f"{__version__}, {_C.cuda_status()}")
    yield Finding("torch", f"{torch.__version__}, Python {platform.python_version()}")
    cores = len(os.sched_getaffinity(0))
    lack = "" if cores > 1 else "jobs on the CPU share one core: sharing gains nothing"
    yield Finding("CPU", f"{cores} cores", lack)
    may = _C.may_raise_priority()
    lack = (
        "" if may else "on a busy machine, the primary may stall while it waits for a lower job, and a job may end late"
    )
    yield Finding("priorities", "can be raised" if may else "no CAP_SYS_NICE, and RLIMIT_NICE is below 20", lack)
    if not torch.cuda.is_available():
        yield Finding("GPU", "none", "device='cuda', Job.graph, sms, run_ahead; jobs run on the CPU")
        return
    yield from _gpus()
    yield from _sharing()


def _gpus() -> Iterator[Finding]:
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        text = f"{gpu.name}, {gpu.multi_processor_count} SMs, {gpu.total_memory / 2**30:.1f} GiB"
        yield Finding(f"cuda:{index}", f"{text}, compute capability {gpu.major}.{gpu.minor}")
    lowest, highest = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]
    levels = lowest - highest + 1
    lack = "" if levels > 1 else "policy='priority' does not protect the primary; use 'strict' or 'best_fit'"
    yield Finding("stream priorities", f"{levels}, from {highest} (first) to {lowest}", lack)


def _sharing() -> Iterator[Finding]:
    driver = _C.cuda_driver_version()
    text = f"{driver // 1000}.{driver % 1000 // 10}"
    lack = "" if driver >= _GREEN_DRIVER else "submit(sms=...) needs a driver for CUDA 12.8"
    yield Finding("driver", f"for CUDA {text}; green contexts: {'no' if lack else 'yes'}", lack)
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    control = shutil.which("nvidia-cuda-mps-control")
    found = f"this process is a client at {pipes}" if pipes else "not in use by this process"
    yield Finding("MPS", f"{found}; {'can be started' if control else 'no nvidia-cuda-mps-control here'}")
    lack = "results of jobs that disagree on it may differ from running alone" if torch.backends.cudnn.benchmark else ""
    yield Finding("cudnn.benchmark", "on" if torch.backends.cudnn.benchmark else "off", lack)
