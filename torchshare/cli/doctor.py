"""`torchshare doctor`: reports what this machine has, and what will not work on it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from rich.table import Table

from torchshare import _C
from torchshare.cli.outputs import print_table
from torchshare.context import interpreter_lock
from torchshare.device import devices
from torchshare.device.device import Finding
from torchshare.version import __version__


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
    """Versions and devices of this machine."""
    yield Finding("torchshare", f"{__version__}, {_C.cuda_status()}")
    lack = "jobs of small ops wait for each other" if interpreter_lock.is_on() else ""
    yield Finding("Python", interpreter_lock.described(), lack)
    yield Finding("torch", torch.__version__)
    for device in devices.ALL:
        yield from device.findings()
