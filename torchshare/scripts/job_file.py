"""jobs.toml: targets, and their options.

max_slowdown = 0.05

[jobs.cnn]
run = "train_a.py --epochs 3"

[jobs.text]
run = "-m pkg.train_b --lr 0.1"
start = "step:50"
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchshare.scripts.toml_file import load

_NAME = re.compile(r"[^\s=/:]+")


@dataclass
class JobFile:
    targets: list[str] = field(default_factory=list)
    """NAME=TARGET each."""
    options: list[tuple[str, str]] = field(default_factory=list)
    """Names with VALUE, for an option outside of jobs, or NAME=VALUE, for one of a job."""


def read(path: Path, options: Collection[str], job_options: Collection[str]) -> JobFile:
    """
    Raises:
        ValueError: for a file that cannot be read; for an unknown key, with its line and the allowed ones.
    """
    text, document = load(path)
    jobs = document.pop("jobs", {})
    if not isinstance(jobs, dict) or not jobs or not all(isinstance(job, dict) for job in jobs.values()):
        raise ValueError(f"{path}: must have a table [jobs.NAME] per job")
    found = JobFile()
    found.options += _options(path, text, None, document, options)
    for name, job in jobs.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{path}: a job's name must have no space, '=', '/' or ':', got '{name}'")
        target = job.pop("run", None)
        if not isinstance(target, str):
            raise ValueError(f'{path}: [jobs.{name}] must have run = "train.py --epochs 3" or the like')
        found.targets.append(f"{name}={target}")
        found.options += _options(path, text, name, job, job_options)
    return found


def _options(
    path: Path, text: str, job: str | None, table: Mapping[str, Any], allowed: Collection[str]
) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if key not in allowed:
            where = f"{path}, line {_line(text, job, key)}: unknown key '{key}'"
            scope, extra = ("outside of jobs", "jobs") if job is None else ("of a job", "run")
            raise ValueError(f"{where}; the keys {scope} are {', '.join(sorted([*allowed, extra]))}")
        shown = _text(value)
        yield key, shown if job is None else f"{job}={shown}"


def _text(value: Any) -> str:
    """The value as a flag has it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)


def _line(text: str, job: str | None, key: str) -> int:
    """The line that has the key, in the job's table."""
    inside = job is None
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[([^\]]*)\]", line)
        if header is not None:
            inside = job is not None and re.sub(r"[\s\"']", "", header[1]) == f"jobs.{job}"
        if inside and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return number
    return 1
