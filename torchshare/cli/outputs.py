"""Output of the verbs: error messages, tables, and files, whose paths are checked before any work."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchshare.context.names import escaped
from torchshare.durable.files import replacing
from torchshare.scripts.targets import CannotLoad

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

_MAX_WIDTH = 1000  # of a table, in characters
_MAX_MESSAGE = 800  # characters
_FIGURES = (".png", ".svg", ".pdf")


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path] = ()) -> None:
    """Checks the paths given by options. Raises ValueError for a folder, a path in a folder that does not exist or
    cannot be written to, and one that is an input or another output too."""
    taken = {os.path.realpath(path): f"the input {path}" for path in inputs}
    for option, path in outputs.items():
        if path is None:
            continue
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise ValueError(f"{option} must be a file in an existing folder, got {path}")
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise ValueError(f"{option} must be a file that can be written, got {path}")
        if path.exists() and not path.is_file():
            continue  # a device can be an output twice
        other = taken.setdefault(os.path.realpath(path), option)
        if other != option:
            raise ValueError(f"{option} must not be {other}, got {path}")


def check_figure(option: str, path: Path | None) -> None:
    """Raises ValueError unless the path ends as that of a figure."""
    if path is not None and path.suffix.lower() not in _FIGURES:
        raise ValueError(f"{option} must end in {', '.join(_FIGURES[:-1])} or {_FIGURES[-1]}, got {path}")


def write(path: Path, save: Callable[[Path], object]) -> int:
    """Writes a file by `save`. Returns the exit code: if it cannot be written, prints why and returns 1."""
    try:
        save(path)
    except OSError as error:
        complain(str(error) if error.strerror is None else f"cannot write {path}: {error.strerror}")
        return 1
    except Exception as error:  # of a library that draws, for example: the results count more
        complain(f"cannot write {path}: {type(error).__name__}: {error}")
        return 1
    return 0


def save_figure(figure: Figure, path: Path, dpi: int) -> None:
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=dpi)


def write_timeline(path: Path, events: list[dict[str, Any]]) -> None:
    """Writes Chrome trace events, for https://ui.perfetto.dev."""
    with replacing(path) as file:
        file.write(json.dumps({"traceEvents": events}).encode())


def complain(text: str) -> None:
    """Prints an error as one line."""
    shown = escaped(text)
    if len(shown) > _MAX_MESSAGE:
        shown = f"{shown[:_MAX_MESSAGE]}..."
    print(f"torchshare: error: {shown}", file=sys.stderr)


def refuse(error: Exception) -> int:
    """Prints the error, behind the traceback of a target's own code; returns the exit code for invalid input."""
    if isinstance(error, CannotLoad) and error.__cause__ is not None:
        from torchshare.context.errors import users_traceback  # imports torch

        print(escaped(users_traceback(error.__cause__), keep="\n\t"), file=sys.stderr)
    complain(str(error))
    return 2


def print_table(table: Table) -> None:
    """Prints the table in full, wider than the terminal if necessary. Its texts are not read as rich's markup."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(markup=False, emoji=False)
    table.title = None if table.title is None else escaped(str(table.title))
    for column in table.columns:
        column.header = escaped(str(column.header))
        column._cells = [escaped(str(cell)) for cell in column.cells]
    room = console.options.update(max_width=_MAX_WIDTH)
    console.width = max(console.width, Measurement.get(console, room, table).maximum)
    console.print(table)
