"""The standard streams of scripts that run together: lines with the job's name, or a file per job; no input."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from torchshare.context import current
from torchshare.context.names import escaped
from torchshare.context.rank import this_rank
from torchshare.durable.files import file_stem
from torchshare.isolation.script_state import process_stream

log = logging.getLogger("torchshare")

_BAR_EVERY_S = 2.0  # how often a progress bar, which overwrites its line, is printed as a line
_CURSOR_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-HJKSTfhlsu]")

_nowhere = open(os.devnull, "w")  # noqa: SIM115  # for all jobs
_lock = threading.Lock()  # keeps lines whole
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


class _Outer:
    """The process's own stream of this name, as it is at the time. In a forked process, that with which the program
    began: a display that jobs' lines go through may have been locked by another thread.

    Once the reader of the stream has gone (`| head`), what is written is dropped, and the run ends. What cannot be
    written for another reason (the stream is closed, the disk is full) is dropped after one warning: training goes on.
    """

    def __init__(self, name: str, output: Output) -> None:
        self._name = name
        self._output = output
        self._process = os.getpid()

    def _stream(self) -> Any:
        forked = os.getpid() != self._process
        stream = getattr(sys, f"__{self._name}__") if forked else process_stream(self._name)
        if stream is None or getattr(stream, "closed", False):
            self._output.tell_of_loss(self._name, "it is closed")
            return _nowhere
        return stream

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._stream(), attribute)

    def write(self, text: str, /) -> int:
        self._try(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(lambda stream: stream.flush())

    def _try(self, act: Callable[[Any], object]) -> None:
        try:
            act(self._stream())
        except BrokenPipeError:
            self._output.has_reader = False
        except OSError as error:
            self._output.tell_of_loss(self._name, error.strerror)


class LineStream(io.TextIOBase):
    """A text stream that writes whole lines to another, each after `prefix`.

    Of a line that carriage returns overwrite, such as a progress bar, it writes the last version, and while that
    changes one every 2 s.
    """

    def __init__(self, prefix: str, outer: _Outer) -> None:
        self.buffer = _Bytes(self)
        self._prefix = prefix
        self._outer = outer
        self._line = ""
        self._bar_due = 0.0
        self._bar: str | None = None  # the version of the current line that was written last

    def write(self, text: str, /) -> int:
        with _lock:
            *lines, rest = (self._line + text).split("\n")
            self._put([_visible(line) for line in lines])
            if "\r" in rest:
                bar = _visible(rest)
                rest = f"\r{bar}" + "\r" * rest.endswith("\r")
                if bar and time.monotonic() >= self._bar_due:
                    self._bar_due = time.monotonic() + _BAR_EVERY_S
                    self._put([bar])
                    self._bar = bar
            self._line = rest
        return len(text)

    def _put(self, lines: list[str]) -> None:
        if self._bar is not None and lines:
            lines = lines[lines[0] == self._bar :]  # its last version has been written
            self._bar = None
        if lines:
            with current.outside_script():  # a progress display asks for `sys.stderr`
                self._outer.write("".join(f"{self._prefix}{line}\n" for line in lines))
                self._outer.flush()

    def finish(self) -> None:
        """Writes an unfinished line."""
        with _lock:
            line, self._line = _visible(self._line), ""
            self._put([line] if line else [])

    def flush(self) -> None:
        self._outer.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._outer.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "replace"

    def reconfigure(self, **_options: Any) -> None:
        """Does nothing: the stream is line-buffered UTF-8."""

    def close(self) -> None:
        """Does nothing: other jobs use the stream below."""


class _Bytes(io.RawIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, text: LineStream) -> None:
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._text.write(bytes(data).decode(errors="replace"))
        return len(data)


class _LogFile(io.FileIO):
    """The file of a job's output. What cannot be written is dropped after one warning: training goes on."""

    def __init__(self, path: str | Path, job: str, append: bool) -> None:
        super().__init__(path, "a" if append else "w")
        self._job = job
        self._warned = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not self._warned:
                self._warned = True
                _warn_of_loss(self._job, error)
            return len(data)


def log_file(path: Path, job: str, append: bool) -> TextIO:
    """The file of a job's output."""
    try:
        file = _LogFile(path, job, append)
    except OSError as error:
        _warn_of_loss(job, error)
        file = _LogFile(os.devnull, job, append)
    return io.TextIOWrapper(io.BufferedWriter(file), line_buffering=True)


def _warn_of_loss(job: str, error: OSError) -> None:
    with current.outside_script():  # not to the file itself
        log.warning("job '%s': its output is lost from here on: %s", escaped(job), error.strerror)


def _visible(line: str) -> str:
    """What a terminal would show of a line: of the versions between carriage returns, the last that is not blank."""
    versions = [version for version in line.split("\r") if version.strip()]
    return _CURSOR_MOVES.sub("", versions[-1]).rstrip() if versions else ""


class _NoInput(io.FileIO):
    """The standard input of a script: empty. Says so once, when it is read."""

    def __init__(self, job: str) -> None:
        super().__init__(os.devnull)
        self._job = job
        self._told = False

    def readinto(self, buffer: Any, /) -> int | None:
        self._tell()
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self._tell()
        return super().readall()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "job '%s': standard input is empty in torchshare run, so input() and breakpoint() fail: run the script "
                "alone with python, or use a remote debugger",
                self._job,
            )


def empty_input(job: str) -> TextIO:
    """The standard input of a script."""
    return io.TextIOWrapper(io.BufferedReader(_NoInput(job)))


class Output:
    """Where the output of scripts goes."""

    def __init__(self, mode: str = "prefix", *, all_to_stderr: bool = False, append: bool = False) -> None:
        """`mode` is "prefix", "plain", or a folder that gets a file per job; with `append`, files go on."""
        self.mode = mode
        self._append = append
        self.has_reader = True
        """False after a write to a closed pipe."""
        self._lost: set[str] = set()
        self._all_to_stderr = all_to_stderr

    def tell_of_loss(self, stream: str, reason: str | None) -> None:
        """Warns, once, that what jobs write to the stream is dropped."""
        if stream not in self._lost:
            self._lost.add(stream)
            with current.outside_script():
                log.warning("what the jobs print to %s is lost from here on: %s", stream, reason)

    @contextlib.contextmanager
    def opened(self, job: str) -> Iterator[tuple[TextIO, TextIO]]:
        """The standard output and error of a job."""
        if self.mode not in ("prefix", "plain"):
            path = Path(self.mode) / f"{file_stem(job)}.log"
            with log_file(this_rank().file(path), job, self._append) as file:
                yield file, file
            return
        out, err = _Outer("stderr" if self._all_to_stderr else "stdout", self), _Outer("stderr", self)
        if self.mode == "plain":
            yield out, err  # type: ignore[misc]
            return
        shown = escaped(job)
        prefix = f"{shown}: " if this_rank().count == 1 else f"{shown}[{this_rank().number}]: "
        lines = LineStream(prefix, out), LineStream(prefix, err)
        try:
            yield lines  # type: ignore[misc]
        finally:
            for stream in lines:
                stream.finish()
