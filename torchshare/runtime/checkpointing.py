"""The checkpoints of a runtime's jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from torchshare.checkpoints.checkpoints import Checkpoints
from torchshare.checkpoints.interval import Interval, parse
from torchshare.checkpoints.writer import Writer
from torchshare.context.loop import Loop
from torchshare.context.rank import this_rank
from torchshare.context.results import ENDED
from torchshare.runtime.declared import with_defaults
from torchshare.runtime.options import RuntimeOptions

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

_LAST_S = 10.0  # how long jobs have for the checkpoints that SIGTERM asks for
_SAME_S = 1.0  # a launcher may signal the process as well as its parent, which passes the signal on


class Folder:
    """The folder for the checkpoints of all jobs."""

    def __init__(self, path: Path, every: Interval, resume: bool) -> None:
        self._path = path
        self._every = every
        self._resume = resume
        self._writer = Writer()

    def checkpoints_of(self, job: JobContext, folder: str, again: bool = False) -> Loop:
        """In that folder of this one; resumes if the job starts `again`. Without checkpoints if its ranks would not
        save at the same steps. Raises ValueError for a folder with checkpoints of the job if it does not resume."""
        if job.rank.count > 1 and self._every.steps is None:
            return Loop()
        return Checkpoints(job, self._path / folder, self._every, self._resume or again, self._writer)

    def save_all(self, jobs: list[JobContext], wait: Callable[[], int]) -> None:
        """Resumes suspended jobs, asks all for a checkpoint, and waits until they are written, for 10 s at most. `wait`
        waits a moment and returns the number of signals that have come; a further one ends the wait."""
        asked = [
            job for job in jobs if isinstance(job.loop, Checkpoints) and job.handle.state in ("running", "suspended")
        ]
        for job in asked:
            job.loop.ask()
            job.resume()
        began, known = time.monotonic(), 0
        while any(job.loop.is_asked() and job.handle.state not in ENDED for job in asked):
            signals, now = wait(), time.monotonic() - began
            known = signals if now < _SAME_S else known
            if signals > known or now > _LAST_S:
                break

    def close(self) -> None:
        """Waits until what has been begun is written."""
        self._writer.close()


def folder_of(options: RuntimeOptions) -> Folder | None:
    """The folder that a runtime's options ask for. Raises ValueError for options that do not fit together."""
    settings = with_defaults(RuntimeOptions, options)
    path = settings["checkpoint"]
    if path is None:
        for name in ("every", "resume"):
            if options.get(name):
                raise ValueError(f"{name} has no effect without checkpoint, the folder to write to")
        return None
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"checkpoint must be a folder, got the file {os.fspath(path)}")
    every = parse(settings["every"])
    if this_rank().count > 1 and every.steps is None:
        raise ValueError("every must be a number of steps, because the ranks must save at the same one")
    # torchrun starts all ranks again after a failure.
    is_restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    return Folder(Path(path).absolute(), every, settings["resume"] or is_restart)
