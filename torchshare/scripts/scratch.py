"""Working folders for jobs that are run again and again: like the user's, whose files stay as they are."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Container, Iterator
from pathlib import Path

SCRATCH = "scratch"
"""The value of `--cwd` for a new copy of the working folder in each run."""

_PREFIX = "torchshare-scratch-"
_MAX_ENTRIES = 5000  # looked at below a folder
_MAX_FILE = 16 * 2**20
_MAX_BYTES = 256 * 2**20  # of all copies
_SKIPPED = "__pycache__"  # written by imports


class WorkingFolder:
    """Where jobs run: in a folder of the user's, or in a new copy of the working folder each time.

    A copy has the small files and the folders; what is large is a link. It lies in a copy of the folders above, whose
    other entries are links, so that `../data` is found.
    """

    def __init__(self, given: str = SCRATCH) -> None:
        """Raises ValueError unless `given` is "scratch" or a folder."""
        self._is_copied = given == SCRATCH
        if not self._is_copied and not os.path.isdir(given):
            raise ValueError(f"--cwd must be {SCRATCH} or an existing folder, got {given}")
        self._folder = Path(os.path.realpath("." if self._is_copied else given))
        self._before = _times(self._folder) if self._is_copied else {}

    @property
    def key(self) -> str:
        """The folder, if the user gave it, because jobs may do something else in it; else empty."""
        return "" if self._is_copied else str(self._folder)

    def __str__(self) -> str:
        if self._is_copied:
            return f"in a new copy of {self._folder} each time (files over {_MAX_FILE >> 20} MiB are links)"
        return f"in {self._folder}, whose files they may change"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """The process is in that folder; a copy is removed at the end. Raises OSError if it cannot be made."""
        with contextlib.ExitStack() as until_the_end:
            folder = self._folder
            if self._is_copied:
                made = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
                folder = _copied(folder, Path(until_the_end.enter_context(made)))
            until_the_end.callback(os.chdir, os.getcwd())
            os.chdir(folder)
            yield

    def changes(self, own: Container[str] = ()) -> list[str]:
        """The files of a copied folder that have been changed, added or removed since; `own` are no such files."""
        if not self._is_copied:
            return []
        after = _times(self._folder)
        paths = [path for path in {**self._before, **after} if self._before.get(path) != after.get(path)]
        return sorted(path for path in paths if str(self._folder / path) not in own)


def _walk(folder: Path) -> Iterator[tuple[str, os.DirEntry[str], bool]]:
    """What is below a folder, the nearest first, by its path from there, and whether its own entries follow. Those of
    one with too many do not."""
    waiting = deque([("", _entries(folder) or [])])
    left = _MAX_ENTRIES - len(waiting[0][1])
    while waiting:
        above, entries = waiting.popleft()
        for entry in entries:
            inside = _entries(entry.path) if entry.is_dir(follow_symlinks=False) else None
            path = os.path.join(above, entry.name)
            follows = inside is not None and len(inside) <= left
            yield path, entry, follows
            if inside is not None and follows:
                left -= len(inside)
                waiting.append((path, inside))


def _entries(folder: str | Path) -> list[os.DirEntry[str]] | None:
    """None of a folder that cannot be read."""
    try:
        with os.scandir(folder) as found:
            return [entry for entry in found if entry.name != _SKIPPED and not entry.name.startswith(_PREFIX)]
    except OSError:
        return None


def _times(folder: Path) -> dict[str, tuple[int, int]]:
    """When files were written last, and their sizes."""
    found = {}
    for path, entry, follows in _walk(folder):
        with contextlib.suppress(OSError):  # it is gone, or a link to nothing
            if not follows:
                known = entry.stat()
                found[path] = (known.st_mtime_ns, known.st_size)
    return found


def _copied(folder: Path, top: Path) -> Path:
    """Makes the copy below `top`. Returns its folder."""
    copy = top / folder.relative_to(folder.anchor)
    copy.mkdir(parents=True)
    left = _MAX_BYTES
    for path, entry, follows in _walk(folder):
        if follows:
            (copy / path).mkdir()
        else:
            left -= _put(entry, copy / path, left)
    for above in folder.parents:
        below = top / above.relative_to(folder.anchor)
        for entry in _entries(above) or []:
            if not os.path.lexists(below / entry.name):
                (below / entry.name).symlink_to(entry.path)
    return copy


def _put(entry: os.DirEntry[str], copy: Path, most: int) -> int:
    """Copies a file of at most that many bytes, links anything else. Returns the bytes."""
    if entry.is_symlink() and not os.path.isabs(os.readlink(entry.path)):
        copy.symlink_to(os.readlink(entry.path))
        return 0
    size = _size(entry)
    if size is not None and size <= min(most, _MAX_FILE):
        shutil.copy2(entry.path, copy)
        return size
    copy.symlink_to(entry.path)
    return 0


def _size(entry: os.DirEntry[str]) -> int | None:
    """None of what is no file that can be read."""
    try:
        known = entry.stat()
    except OSError:  # a link to nothing
        return None
    return known.st_size if stat.S_ISREG(known.st_mode) and os.access(entry.path, os.R_OK) else None
