"""The journal of a cluster's queue: a file of JSON lines.

It is no SQLite database, because a new head goes on from storage that another machine has written. SQLite relies on
byte-range locks, which some network file systems ignore, and a database that two processes have written is corrupt. An
append-only file needs no lock to show that another process has written: its size has changed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from torchshare.durable.files import finished_name, make_folder, replacing, sync_folder

Event = dict[str, Any]

_PATIENCE_S = 10.0  # how long a new scheduler waits until one that was killed is gone
_POLL_S = 0.1


class Superseded(RuntimeError):
    """Another scheduler writes to the journal."""


class Journal:
    """What `append` has returned from is on the disk.

    One process at a time: a lock file is held. Where the file system's locks do not reach other machines, each append
    finds out whether another process has written since.
    """

    def __init__(self, path: Path, patience: float = _PATIENCE_S, *, is_new: bool = True) -> None:
        """Opens or creates the file, and drops a last line that was cut off.

        Raises:
            Superseded: if another process has it open.
            ValueError: if a line is damaged, or if there is none, although the journal is not a new one.
        """
        make_folder(path.parent)
        self._path = path
        self._lock = FileLock(f"{path}.lock", thread_local=False)
        try:
            self._lock.acquire(patience, _POLL_S)
        except Timeout:
            raise Superseded(f"{path}: another scheduler has it open") from None
        self._file = -1
        try:
            self._remove_unfinished()
            self._file = self._opened()
            self.events, self._size = _read(path)
            if not self.events and not is_new:
                raise ValueError(f"{path}: the journal is lost: it has no event, but its folder has files of jobs")
            os.ftruncate(self._file, self._size)
            self.count = len(self.events)  # in the file
            self.append({"event": "scheduler", "time": time.time(), "pid": os.getpid()})
            sync_folder(path.parent)
        except BaseException:
            self.close()
            raise

    def _opened(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def _remove_unfinished(self) -> None:
        """An earlier scheduler may have been killed while it replaced the journal."""
        for each in self._path.parent.iterdir():
            if finished_name(each.name) == self._path.name:
                each.unlink()

    def append(self, event: Mapping[str, Any]) -> None:
        """Raises OSError if it cannot be written, and Superseded; the journal is then as it was."""
        data = f"{json.dumps(event, allow_nan=False)}\n".encode()
        self.check()
        try:
            written = os.write(self._file, data)
            if written < len(data):
                raise OSError(f"{self._path}: {written} of {len(data)} bytes were written")
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)
        self._last = len(data)
        self.count += 1

    def replace(self, event: Mapping[str, Any]) -> None:
        """Begins the journal anew, with this event alone; whole or not at all. Raises OSError, and Superseded."""
        self.check()
        data = f"{json.dumps(event, allow_nan=False)}\n".encode()
        with replacing(self._path, synced=True) as file:
            file.write(data)
        former, self._file = self._file, self._opened()
        os.close(former)
        self._size, self.count = len(data), 1

    def retract(self) -> None:
        """Drops the last event, which could not be applied, and closes: what its writer knows may differ now from what
        the journal says."""
        os.ftruncate(self._file, self._size - self._last)
        os.fsync(self._file)
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        self._lock.release()

    def check(self) -> None:
        """Raises Superseded, and ValueError after `close`."""
        if self._file < 0:
            raise ValueError(f"{self._path}: the journal is closed")
        here = os.fstat(self._file)
        try:
            there = os.stat(self._path).st_ino
        except FileNotFoundError:
            there = None
        if here.st_size != self._size or there != here.st_ino:
            raise Superseded(f"{self._path}: another process has written to it, or replaced it")


def _read(path: Path) -> tuple[list[Event], int]:
    """The events, and the size of the file without a last line that was cut off."""
    events: list[Event] = []
    data = path.read_bytes()
    *lines, cut_off = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            if not isinstance(event, dict) or "event" not in event:
                raise ValueError
        except ValueError:
            raise ValueError(f"{path}:{number}: the journal is damaged: {line[:60]!r}") from None
        events.append(event)
    if not b'{"'.startswith(cut_off[:2]) and cut_off.strip(b"\0"):  # not the beginning of a line
        raise ValueError(f"{path}:{len(lines) + 1}: the journal is damaged: {cut_off[:60]!r}")
    return events, len(data) - len(cut_off)
