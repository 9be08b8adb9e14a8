"""Reads what a process that crashed has left (see crash_log): which job crashed it, and where. Without torch."""

from __future__ import annotations

import json
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LIBRARY = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]), "<frozen ")
_STACK = re.compile(r"^Current thread 0x([0-9a-f]+).*\n((?:  .*\n)*)", re.MULTILINE)
_FRAME = re.compile(r'  File "(.*)", line (\S+) in (.*)')
_ERROR = re.compile(r"^Fatal Python error: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Crash:
    how: str
    job: str | None
    """The one whose thread crashed; None if unknown."""
    stack: str = ""


def lines_of(log: str) -> list[list[Any]]:
    """The lines that crash_log has written; the others are Python's."""
    return [json.loads(line) for line in log.splitlines() if line.startswith('["')]


def crash_in(log: str, error: str | None = None) -> Crash | None:
    """The crash in a log; `error` is its name, by default Python's. None if it is not known which job it was."""
    stack = _STACK.search(log)
    job = None if stack is None else _jobs(log).get(int(stack[1], 16))
    if stack is None or job is None:
        return None
    named = _ERROR.search(log)
    name = error or (named[1] if named is not None else "it ended")
    return Crash(f"job '{job}' crashed the process: {name}{_place(stack[2])}", job, stack[0])


def stack_in(log: str) -> str:
    """The stack of the thread that crashed."""
    stack = _STACK.search(log)
    return "" if stack is None else stack[0]


def _jobs(log: str) -> dict[int, str]:
    """The job of each thread. The id of a thread that has ended may be used again."""
    jobs: dict[int, str] = {}
    for kind, value, job in lines_of(log):
        if kind == "job":
            jobs[value] = job
        elif kind == "left":
            jobs.pop(value, None)
    return jobs


def _place(stack: str) -> str:
    """The user's own line in a stack."""
    frames = [match.groups() for line in stack.splitlines() if (match := _FRAME.fullmatch(line))]
    own = [frame for frame in frames if not frame[0].startswith(_LIBRARY)]
    return "".join(f" at {file}:{line} ({function})" for file, line, function in own[:1])
