"""What a command says and writes: refusals, tables, and its files, which are checked before it does any work."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_WIDEST = 1000  # columns of a table


def check_output(option: str, path: Path | None) -> None:
    """Raises ValueError where `path`, given by `option`, is a folder or in a folder that is not there."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ValueError(f"{option} {path}: expected a file in a folder that exists")


def refuse(error: Exception) -> int:
    """Says what is wrong with the input; returns the exit code for that."""
    print(f"torchshare: error: {error}", file=sys.stderr)
    return 2


def print_table(table: Table) -> None:
    """Prints it whole, wider than the terminal where it must be."""
    console = Console()
    room = console.options.update(max_width=_WIDEST)
    console.width = max(console.width, Measurement.get(console, room, table).maximum)
    console.print(table)
