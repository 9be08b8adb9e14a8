"""`torchshare doctor`: reports what this machine has, and what will not work on it."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.table import Table

from torchshare import _C
from torchshare.cli.outputs import print_table, refuse
from torchshare.context import interpreter_lock
from torchshare.device import devices
from torchshare.device.device import Finding
from torchshare.version import __version__

_RUN_ALL = Path(__file__).parents[2] / "benchmarks" / "gpu" / "run_all.sh"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.description = "Prints what torchshare found: versions, CUDA, GPUs, stream priorities, green contexts, MPS."
    parser.add_argument(
        "--gpu-plan",
        nargs="*",
        metavar="STAGE",
        help="print instead what benchmarks/gpu/run_all.sh would run on a GPU machine, all of it or these stages, how "
        "long each may take, and what this machine lacks",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns exit code 0 whatever is missing: jobs run on the CPU anyway."""
    if arguments.gpu_plan is not None:
        return _gpu_plan(arguments.gpu_plan)
    table = Table("what", "found", "what will not work", title="torchshare doctor")
    for finding in findings():
        table.add_row(finding.what, finding.found, finding.lack or "-")
    print_table(table)
    return 0


def _gpu_plan(stages: list[str]) -> int:
    """Prints the plan of the checkout's benchmarks. Returns the exit code."""
    if not _RUN_ALL.is_file():
        return refuse(
            ValueError(f"--gpu-plan needs a checkout with torchshare installed in place, there is no {_RUN_ALL}")
        )
    return subprocess.run(["sh", _RUN_ALL, "--plan", *stages], check=False).returncode


def findings() -> Iterator[Finding]:
    """Versions and devices of this machine."""
    yield Finding("torchshare", f"{__version__}, {_C.cuda_status()}")
    lack = "jobs of small ops wait for each other" if interpreter_lock.is_on() else ""
    yield Finding("Python", interpreter_lock.described(), lack)
    yield Finding("torch", torch.__version__)
    for device in devices.ALL:
        yield from device.findings()
