"""Files that a command is to write, checked before it does any work."""

from __future__ import annotations

from pathlib import Path


def check_output(option: str, path: Path | None) -> None:
    """Raises ValueError where `path`, given by `option`, is a folder or in a folder that is not there."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ValueError(f"{option} {path}: expected a file in a folder that exists")
