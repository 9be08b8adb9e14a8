"""`torchshare run --max-restarts`: runs the same command in a child process, and again when that crashes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import IO

from torchshare import _core
from torchshare.runtime.crashes import Crash, crash_in, lines_of, stack_in
from torchshare.runtime.options import JobOptions

VARIABLE = "TORCHSHARE_SUPERVISED"
_CRASHES = 3  # of a job in a row, before it is dropped
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class Attempt:
    """What the supervisor tells its child."""

    log: int
    """The file for crash_log."""
    resume: bool = False
    dropped: dict[str, str] = field(default_factory=dict)
    """Jobs that are not to be run, and why."""


def this_attempt() -> Attempt | None:
    """The attempt that this process is; None if it has no supervisor. Its own child processes have none."""
    text = os.environ.pop(VARIABLE, None)
    return None if text is None else Attempt(**json.loads(text))


def check(checkpoint: object, environment: Mapping[str, str]) -> None:
    """Raises ValueError where --max-restarts cannot be used."""
    if "TORCHELASTIC_RUN_ID" in environment:
        raise ValueError("--max-restarts is not for ranks: torchrun restarts them, by its own --max-restarts")
    if checkpoint is None:
        raise ValueError("--max-restarts needs --checkpoint, the folder that jobs are resumed from")


def drop(jobs: Sequence[JobOptions], attempt: Attempt | None) -> list[JobOptions]:
    """Returns the jobs that the supervisor has dropped, and those that start only if one of these finishes. No other
    job waits for them any more."""
    if attempt is None or not attempt.dropped:
        return []
    reasons = dict(attempt.dropped)
    dropped: list[JobOptions] = []
    left = list(jobs)
    while found := next((each for each in left if _is_dropped(each, reasons)), None):
        left.remove(found)
        dropped.append(found)
        print(f"torchshare: job '{found['name']}' is dropped: {reasons[str(found['name'])]}", file=sys.stderr)
    lost = _core.lost_starts(
        [(str(each["name"]), each.get("priority", "secondary"), str(each.get("start", "now"))) for each in left]
    )
    for each in left:
        if each["name"] in lost:
            each["start"] = "now"
        if "after" in each:
            each["after"] = [text for text in each["after"] or () if _core.Predecessor(text).name not in reasons]
    return dropped


def _is_dropped(job: JobOptions, reasons: dict[str, str]) -> bool:
    """Adds the reason to `reasons` if it is that the job must not start."""
    for predecessor in map(_core.Predecessor, job.get("after") or ()):
        if predecessor.must_finish and predecessor.name in reasons:
            reasons.setdefault(str(job["name"]), f"its predecessor '{predecessor.name}' is dropped")
    return job["name"] in reasons


class Supervisor:
    def __init__(self, words: Sequence[str], restarts: int) -> None:
        """`words` is the command line after `torchshare`."""
        self._command = [sys.executable, *subprocess._args_from_interpreter_flags(), "-m", "torchshare", *words]  # type: ignore[attr-defined]
        self._restarts = restarts
        self._child: subprocess.Popen[bytes] | None = None
        self._ended_by = 0

    def run(self) -> int:
        """Returns the exit status of the last child."""
        former = {number: signal.signal(number, self._pass_on) for number in _PASSED_ON}
        try:
            return self._run()
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _run(self) -> int:
        dropped: dict[str, str] = {}
        latest, in_a_row = None, 0
        for restart in range(self._restarts + 1):
            status, crash = self._attempt(restart > 0, dropped)
            if crash is None or self._ended_by:
                return status
            print(crash.stack, end="", file=sys.stderr)
            left = f"restart {restart + 1} of {self._restarts}"
            if restart == self._restarts:
                left = f"no restart is left of {self._restarts}"
            print(f"torchshare: {crash.how}; {left}", file=sys.stderr, flush=True)
            in_a_row = in_a_row + 1 if crash.job == latest else 1
            latest = crash.job
            if crash.job is not None and in_a_row == _CRASHES:
                dropped[crash.job] = f"{_CRASHES} times in a row, {crash.how}"
        return status

    def _attempt(self, resume: bool, dropped: dict[str, str]) -> tuple[int, Crash | None]:
        if self._ended_by:
            return 128 + self._ended_by, None
        with tempfile.TemporaryFile() as log:
            attempt = Attempt(log.fileno(), resume, dropped)
            self._child = subprocess.Popen(
                self._command,
                env={**os.environ, VARIABLE: json.dumps(asdict(attempt))},
                pass_fds=[log.fileno()],
                start_new_session=True,  # a terminal's Ctrl-C comes once, from here
            )
            if self._ended_by:
                self._child.send_signal(self._ended_by)
            status = self._child.wait()
            return read(log, status)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if number in _ENDING:
            self._ended_by = number
        if self._child is not None:
            self._child.send_signal(number)


def read(log: IO[bytes], status: int) -> tuple[int, Crash | None]:
    """The exit status of a child, given what `Popen.wait` returned; and how it crashed, unless it did not."""
    log.seek(0)
    text = log.read().decode(errors="replace")
    for kind, value, reason in lines_of(text):
        if kind == "lost":
            return 1, Crash(reason, None)
        if kind == "end":
            return value, None
    if status >= 0:
        return status, None
    number, status = -status, 128 - status
    if number in _ENDING:
        return status, None
    name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
    crash = crash_in(text, name)
    return status, crash or Crash(f"the process was ended by {name}", None, stack_in(text))
