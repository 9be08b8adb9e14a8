"""What jobs print, as a file per job. Scripts have streams of their own."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any, TextIO

from torchshare.context import current
from torchshare.scripts.output import log_file

_files: dict[str, TextIO] = {}  # by job


def open_for(job: str, path: Path) -> None:
    """What is printed in the job's thread goes to the end of this file, until `close_for`."""
    for name in ("stdout", "stderr"):
        if not isinstance(getattr(sys, name), _Routed):
            setattr(sys, name, _Routed(getattr(sys, name)))
    close_for(job)
    _files[job] = log_file(path, job, append=True)


def close_for(job: str) -> None:
    file = _files.pop(job, None)
    if file is not None:
        file.close()


class _Routed(io.TextIOBase):
    """Writes to the file of the calling thread's job, else to the process's stream."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def _stream(self) -> Any:
        job = current.job()
        return self._process if job is None else _files.get(job.name, self._process)

    def write(self, text: str, /) -> int:
        self._stream().write(text)
        return len(text)

    def flush(self) -> None:
        self._stream().flush()

    def fileno(self) -> int:
        return int(self._process.fileno())

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"
