"""The measurements of a profile that is not finished, as a file: the next `torchshare profile` goes on from them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from torchshare.durable.files import replacing
from torchshare.profiles.profile import code_digest, device_name
from torchshare.profiling.measurement import Candidate, Measurement


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    version: Literal[1] = 1
    origin: dict[str, str]
    """What was measured: the job's code, the device and so on."""
    found: dict[str, list[Measurement]] = {}


class Kept:
    """The measurements of one job so far, by what was measured; in a file, unless `path` is None."""

    def __init__(self, path: Path | None, candidate: Candidate, window: float, *, go_on: bool) -> None:
        """Reads the file, unless it is another code's, device's, torch's or window's."""
        self._path = path
        origin = {
            "code": code_digest(candidate.function),
            "device": device_name(),
            "torch": torch.__version__,
            "threads": str(candidate.threads),
            "window": str(window),
        }
        self._file = (_loaded(path, origin) if path is not None and go_on else None) or _File(origin=origin)

    @property
    def count(self) -> int:
        return len(self._file.found)

    def get(self, what: str) -> list[Measurement] | None:
        return self._file.found.get(what)

    def put(self, what: str, found: list[Measurement]) -> None:
        self._file.found[what] = found
        if self._path is None:
            return
        with contextlib.suppress(OSError):  # a full disk ends no measuring
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as file:
                file.write(self._file.model_dump_json().encode())

    def remove(self) -> None:
        """The profile is finished."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


def _loaded(path: Path, origin: dict[str, str]) -> _File | None:
    try:
        file = _File.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return file if file.origin == origin else None
