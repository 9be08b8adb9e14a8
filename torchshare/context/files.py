from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` at the end; after an exception, `path` is as it was. What is no regular
    file, such as a pipe or a device, is written to."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as device:
            yield device
        return
    target = Path(os.path.realpath(path))  # a link stays a link
    unfinished = target.with_name(f".torchshare-{secrets.token_hex(8)}.part")
    file = unfinished.open("xb")  # fails for a link of that name
    try:
        with file:
            if target.exists():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
            yield file
        os.replace(unfinished, target)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it, whose names survive a crash of the system."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes the names of its files survive a crash of the system."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
