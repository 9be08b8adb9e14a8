"""The user's cache. What is in it is loaded as code, so nobody else may be able to write there."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_OTHERS = 0o077
_OTHERS_WRITE = 0o022


class CacheUnusable(Exception):
    """The cache cannot be used; the message says why."""


def cache_folder(what: str) -> Path:
    """The folder in which `what` is cached between runs. Raises CacheUnusable if the user has no home."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(given) if given else Path.home() / ".cache"
    except RuntimeError:
        raise CacheUnusable("the user has no home, and XDG_CACHE_HOME is not set") from None
    if not base.is_absolute():
        raise CacheUnusable(f"{'XDG_CACHE_HOME' if given else 'HOME'} must be an absolute path, got '{given or ''}'")
    return base / "torchshare" / what


def own_folder(what: str) -> Path:
    """That folder, without links in its path. Makes it if it is missing, and closes it to others.

    Raises:
        CacheUnusable: if it cannot be made, or another user could change what is in it.
    """
    folder = cache_folder(what)
    try:
        _make(folder)
        folder = Path(os.path.realpath(folder, strict=True))
        for each in (folder.parent, folder):
            _close(each)
        for each in (folder, *folder.parents):
            _check_folder(each)
    except OSError as error:
        raise CacheUnusable(f"{error.filename or folder}: {error.strerror or error}") from None
    return folder


def check_file(path: Path) -> None:
    """Raises CacheUnusable unless the file is the user's and nobody else can write to it."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
        raise CacheUnusable(f"{path} is not a file that only this user can write to")


def _make(folder: Path) -> None:
    if folder.is_dir():
        return
    _make(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
        folder.chmod(0o700)  # the umask may have taken away the user's own rights


def _close(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise CacheUnusable(f"{folder} belongs to user {found.st_uid}")
    if found.st_mode & _OTHERS:
        folder.chmod(0o700)


def _check_folder(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise CacheUnusable(f"{folder} is not a folder")
    if found.st_uid not in (0, os.geteuid()):
        raise CacheUnusable(f"{folder} belongs to user {found.st_uid}")
    # In a sticky folder, others cannot rename or remove what is not theirs.
    if found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
        raise CacheUnusable(f"others can write to {folder}")
