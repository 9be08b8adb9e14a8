"""The folder of a cluster, on storage that all its nodes see."""

from __future__ import annotations

import contextlib
import pickle
import secrets
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchshare.durable.files import file_stem, make_folder, replacing


@dataclass(frozen=True)
class Outcome:
    """How a job ended. Its existence is what makes the job's end final: it is written once, before anybody is told."""

    state: str
    """finished or failed"""
    data: bytes | None = None
    """The value that the function returned, pickled: only clients may have the modules that it needs."""
    error: str = ""

    @property
    def value(self) -> Any:
        return None if self.data is None else pickle.loads(self.data)


class WrongStorage(OSError):
    """The folder is not the cluster's storage, but another of that name."""


@dataclass(frozen=True)
class Storage:
    path: Path
    mark: str | None = None
    """The text that the cluster's scheduler has written into the folder; None disables `check`."""

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def _mark(self) -> Path:
        return self.path / "mark"

    @property
    def is_used(self) -> bool:
        """Whether the folder has files of jobs: then its journal had events."""
        folders = (self.path / each for each in ("jobs", "outcomes", "functions"))
        return self._mark.exists() or any(any(folder.glob("[!.]*")) for folder in folders)

    def put_mark(self) -> str:
        """Returns the mark, a new one if there is none."""
        _write(self._mark, secrets.token_hex(16).encode())
        return self._mark.read_text()

    def check(self) -> None:
        """Raises WrongStorage if the mark is not there: what is written here, nobody would see."""
        if self.mark is None:
            return
        try:
            found = self._mark.read_text()
        except OSError as error:
            found, what = "", f"not the mark of the scheduler ({error.strerror})"
        else:
            what = "another cluster's mark"
        if found != self.mark:
            raise WrongStorage(f"{self.path} is not the cluster's storage on this node: it has {what}")

    @property
    def jobs(self) -> Path:
        """A folder per submission, since names are used again: its checkpoints and logs."""
        return self.path / "jobs"

    def logs(self, submission: str) -> Path:
        return self.jobs / submission

    def log(self, submission: str, job: str) -> Path:
        return self.logs(submission) / f"{file_stem(job)}.log"

    def function(self, submission: str) -> Path:
        """The pickled function of a job."""
        return self.path / "functions" / f"{submission}.pkl"

    def _outcome(self, submission: str) -> Path:
        return self.path / "outcomes" / f"{submission}.pkl"

    def gang(self, submission: str, attempt: int) -> Path:
        """The file to which the first rank of a job writes its address."""
        return self.path / "gangs" / f"{submission}.{attempt}"

    def crash(self, token: str) -> Path:
        """The file to which a host's process writes when it crashes."""
        return self.path / "crashes" / token

    def take_crash(self, token: str) -> str:
        """What the host's process has written; empty if nothing. Removes the file."""
        text, path = "", self.crash(token)
        with contextlib.suppress(OSError):
            text = path.read_text(errors="replace")
            path.unlink()
        return text

    def prune(self, kept: Collection[str], needed: Collection[str], tokens: Collection[str] = ()) -> None:
        """Removes the outcomes, checkpoints and logs of submissions that are not kept, the functions of those that are
        not needed, and what hosts with other tokens have left."""
        names_of = {"outcomes": kept, "jobs": kept, "functions": needed, "gangs": needed, "crashes": tokens}
        for folder, names in names_of.items():
            for path in self.path.joinpath(folder).glob("[!.]*"):
                if path.name.partition(".")[0] in names:
                    continue
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def put_function(self, submission: str, data: bytes) -> None:
        _write(self.function(submission), data)

    def put_outcome(self, submission: str, outcome: Outcome) -> Outcome:
        """Returns the outcome that counts: this one, unless there is one already. Raises OSError, and WrongStorage."""
        self.check()
        _write(self._outcome(submission), pickle.dumps(outcome))
        known = self.outcome(submission)
        assert known is not None
        return known

    def outcome(self, submission: str) -> Outcome | None:
        data = self.outcome_data(submission)
        return None if data is None else pickle.loads(data)

    def outcome_data(self, submission: str) -> bytes | None:
        try:
            return self._outcome(submission).read_bytes()
        except FileNotFoundError:
            return None


def _write(path: Path, data: bytes) -> None:
    """Writes a file, whole or not at all, unless it exists. Once this has returned, it survives a crash of the
    system."""
    make_folder(path.parent)
    with replacing(path, synced=True, overwrites=False) as file:
        file.write(data)
