"""The journal of a cluster's queue: a file of JSON lines."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchshare.context.files import make_folder, sync_folder

Event = dict[str, Any]

_PATIENCE_S = 10.0  # how long a new scheduler waits until one that was killed is gone
_POLL_S = 0.1


class Superseded(RuntimeError):
    """Another scheduler writes to the journal."""


class Journal:
    """What `append` has returned from is on the disk.

    One process at a time: the file is locked. Where the file system's locks do not reach other machines, each append
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
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock(patience)
            self.events, self._size = _read(path)
            if not self.events and not is_new:
                raise ValueError(f"{path}: the journal is lost: it has no event, but its folder has files of jobs")
            os.ftruncate(self._file, self._size)
            self.count = len(self.events)  # in the file
            self.append({"event": "scheduler", "time": time.time(), "pid": os.getpid()})
            sync_folder(path.parent)
        except BaseException:
            os.close(self._file)
            raise

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
        new = self._path.with_name(f".{self._path.name}.new")
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            data = f"{json.dumps(event, allow_nan=False)}\n".encode()
            with os.fdopen(os.dup(file), "wb") as stream:
                stream.write(data)
            os.fsync(file)
            os.replace(new, self._path)
        except BaseException:
            os.close(file)
            raise
        os.close(self._file)
        self._file, self._size, self.count = file, len(data), 1
        sync_folder(self._path.parent)

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

    def _lock(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        while True:
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Superseded(f"{self._path}: another scheduler has it open") from None
                time.sleep(_POLL_S)

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
