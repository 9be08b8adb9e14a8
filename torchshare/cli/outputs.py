"""Output of the verbs: error messages, tables, and files, whose paths are checked before any work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_MAX_WIDTH = 1000  # of a table, in characters


def check_output(option: str, path: Path | None) -> None:
    """Raises ValueError if `path`, given by `option`, is a folder or is in a folder that does not exist."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ValueError(f"{option} must be a file in an existing folder, got {path}")


def refuse(error: Exception) -> int:
    """Prints the error; returns the exit code for invalid input."""
    print(f"torchshare: error: {error}", file=sys.stderr)
    return 2


def print_table(table: Table) -> None:
    """Prints the table in full, wider than the terminal if necessary."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    room = console.options.update(max_width=_MAX_WIDTH)
    console.width = max(console.width, Measurement.get(console, room, table).maximum)
    console.print(table)
