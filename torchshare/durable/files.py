"""Files that are whole or absent, and their names."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import quote

_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{16}\.part", re.DOTALL)
_MAX_STEM = 120  # characters
_MAX_NAME = 220  # bytes of a file's own name in that of its unfinished one, which has at most 255


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, synced: bool = False, overwrites: bool = True) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` at the end; after an exception, `path` is as it was. If `path` is no
    regular file, such as a pipe or a device, it is written to instead.

    Args:
        synced: the file survives a crash of the system once the context has ended.
        overwrites: if False, a file that exists stays, and the new one is dropped.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as device:
            yield device
        return
    target = Path(os.path.realpath(path))  # a link stays a link
    name = os.fsdecode(os.fsencode(target.name)[:_MAX_NAME])
    unfinished = target.with_name(f".{name}.{secrets.token_hex(8)}.part")
    file = unfinished.open("xb")  # fails for a link of that name
    try:
        with file:
            if target.exists():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
            yield file
            if synced:
                file.flush()
                os.fsync(file.fileno())
        if overwrites:
            os.replace(unfinished, target)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(unfinished, target)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    if synced:
        sync_folder(target.parent)


def finished_name(name: str) -> str:
    """What an unfinished file of this name was to be called, at most 220 bytes of it; empty if it is no such name. A
    process that is killed leaves its unfinished files."""
    match = _UNFINISHED.fullmatch(name)
    return "" if match is None else match[1]


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


def file_stem(job: str) -> str:
    """A job's name as part of a file name: no separators, no dots, of bounded length."""
    stem = quote(job, safe="", errors="surrogatepass").replace(".", "%2E")
    if len(stem) <= _MAX_STEM:
        return stem
    return f"{stem[: _MAX_STEM - 17]}-{hashlib.sha256(job.encode(errors='surrogatepass')).hexdigest()[:16]}"
