"""Checkpoint files: what `torch.save` writes, followed by a checksum. `torch.load` reads them."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path
from typing import IO, Any

import torch

from torchshare.context.rank import Rank
from torchshare.durable.files import file_stem, finished_name, make_folder, replacing

log = logging.getLogger("torchshare")

_MARK = b"\ntorchshare-sha256:"
_KEPT = 2  # checkpoints per job
_KEPT_OF_RANKS = 3  # a rank may have written a checkpoint while another one still writes the one before
_FORMAT = 1


class Unusable(Exception):
    """A file that cannot be resumed from; the message says why."""


class JobFiles:
    """The checkpoints of one job, on this rank, in a folder: `NAME.STEP.pt`, or `NAME.STEP.rankN.pt`."""

    def __init__(self, folder: Path, job: str, rank: Rank) -> None:
        self._folder = folder
        self._job = job
        self._stem = file_stem(job)
        self._rank = rank
        self._kept: list[Path] = []
        end = re.escape(self._rank.file(Path("x.pt")).name[1:])
        self._pattern = re.compile(rf"{re.escape(self._stem)}\.(\d+){end}")

    @property
    def has_any(self) -> bool:
        """Whether a checkpoint was written, or the job resumed from one."""
        return bool(self._kept)

    def find(self) -> dict[int, Path]:
        """The files, by step, the newest first."""
        try:
            paths = list(self._folder.iterdir())
        except OSError:
            return {}
        names = ((self._pattern.fullmatch(path.name), path) for path in paths)
        found = {int(match[1]): path for match, path in names if match is not None}
        return dict(sorted(found.items(), reverse=True))

    def usable(self) -> dict[int, dict[str, Any]]:
        """The contents of the newest usable file, by step; on several ranks, those of all. Logs why others are not."""
        found: dict[int, dict[str, Any]] = {}
        for step, path in self.find().items():
            try:
                found[step] = self._read(path)
            except Unusable as reason:
                log.warning("job '%s': checkpoint %s is refused: %s", self._job, path, reason)
            else:
                if self._rank.count == 1:
                    break
        return found

    def keep(self, newest: int) -> None:
        """Keeps this file and the one before. The next `write` removes all others."""
        kept = [path for step, path in self.find().items() if step <= newest]
        self._kept = kept[:_KEPT][::-1]

    def _read(self, path: Path) -> dict[str, Any]:
        """Tensors are read from the file when they are used. Raises Unusable."""
        try:
            _check(path)
            payload = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
            expected = {"format": _FORMAT, "job": self._job, "ranks": self._rank.count}
            for key, value in expected.items():
                if payload[key] != value:
                    raise Unusable(f"its {key} is {payload[key]!r}, must be {value!r}")
        except Unusable:
            raise
        except OSError as error:
            raise Unusable(error.strerror or str(error)) from None
        except Exception as error:  # of a file that someone else has written
            raise Unusable(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from None
        return dict(payload)

    def write(self, step: int, payload: dict[str, Any]) -> None:
        """Writes a file, whole or not at all, and removes those that are too old. Raises OSError."""
        payload = {"format": _FORMAT, "job": self._job, "ranks": self._rank.count, **payload}
        make_folder(self._folder)
        path = self._rank.file(self._folder / f"{self._stem}.{step:08}.pt")
        with replacing(path, synced=True) as file:
            _save(payload, file)
        count = _KEPT if self._rank.count == 1 else _KEPT_OF_RANKS
        self._kept = [*(each for each in self._kept if each != path), path][-count:]
        for each in self._folder.iterdir():
            if each not in self._kept and self._owns(each.name):
                each.unlink(missing_ok=True)

    def _owns(self, name: str) -> bool:
        """Whether it is the name of a checkpoint, or of an unfinished one, of this job on this rank."""
        return any(self._pattern.fullmatch(each) for each in (name, finished_name(name)))


class _Hashing:
    """A file that hashes what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._error: OSError | None = None
        self.hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        # torch cannot close its writer after an exception; the error is raised at the end.
        if self._error is None:
            self.hash.update(data)
            try:
                self._file.write(data)
            except OSError as error:
                self._error = error
        return len(data)

    def flush(self) -> None:
        pass

    def check(self) -> None:
        if self._error is not None:
            raise self._error


def _save(payload: dict[str, Any], file: IO[bytes]) -> None:
    hashing = _Hashing(file)
    torch.save(payload, hashing)  # type: ignore[arg-type]
    hashing.check()
    file.write(_MARK + hashing.hash.hexdigest().encode())


def _check(path: Path) -> None:
    """Raises Unusable unless the checksum is that of the contents."""
    tail = len(_MARK) + 2 * hashlib.sha256().digest_size
    with path.open("rb") as file:
        remaining = os.fstat(file.fileno()).st_size - tail
        digest = hashlib.sha256()
        while remaining > 0 and (data := file.read(min(remaining, 1 << 20))):
            digest.update(data)
            remaining -= len(data)
        end = file.read()
    if len(end) != tail or not end.startswith(_MARK):
        raise Unusable("it is incomplete, or no checkpoint of torchshare")
    if end != _MARK + digest.hexdigest().encode():
        raise Unusable("its checksum differs from its contents")
